"""Gives a picture network of another origin the tensors that clients know: `image` uint8 in, `logits` float32 out.

In: a model that reads floats (batch, C, H, W) or (batch, H, W, C), and a `Processor`. Out: a copy with Cast, Mul and
Add before its first layer, which the compiler can fold into that layer; PublishError for other kinds of networks.
"""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from export.compiler.graph.constants import Constants
from export.compiler.graph.node_builder import Nodes
from export.errors import PublishError
from export.pictures.processor import Processor, Size
from models.networks.config import INPUT_NAME, OUTPUT_NAME

FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16)
NO_SCORES = ("embed", "hidden", "pooler", "feature", "attention", "attn")  # in names of outputs that are no scores
VALUE_PRESERVING = ("Identity", "Cast", "Flatten", "Reshape", "Squeeze")
LAST_TO_FIRST, FIRST_TO_LAST = (0, 3, 1, 2), (0, 2, 3, 1)  # permutations: (B, H, W, C) to (B, C, H, W) and back
DYNAMIC = "torch.onnx.export has dynamic_shapes, or dynamic_axes, for it"


@dataclass(frozen=True)
class Interface:
    """Input and output of a picture network.

    `pictures`: the input. `scores`: the value with the scores of classes before any softmax. `size`: height and width;
    None: free. `reads_bytes`: the input is uint8, and the network normalises it. `channels_last`: the input is
    (batch, H, W, C).
    """

    pictures: ir.Value
    scores: ir.Value
    channels: int
    size: Size | None
    reads_bytes: bool
    channels_last: bool


def interface(model: ir.Model, named: bool) -> Interface:
    """Recognises the input and the output of a picture network.

    `named`: the user has named the classes, which vouches that the output has scores. Raises PublishError.
    """
    inputs = [value for value in model.graph.inputs if value.name not in model.graph.initializers]
    if len(inputs) != 1:
        raise PublishError(f"expected a network of one input, pictures, found {_names(inputs)}")
    pictures = inputs[0]
    shape = pictures.shape.dims if pictures.shape is not None else ()
    dims = [dim if isinstance(dim, int) and dim > 0 else None for dim in shape]  # Paddle writes -1 for free sizes
    if channels_last := len(dims) == 4 and dims[1] not in (1, 3) and dims[3] in (1, 3):
        dims = [dims[axis] for axis in LAST_TO_FIRST]
    if len(dims) != 4 or dims[1] not in (1, 3, None) or pictures.dtype not in (*FLOATS, ir.DataType.UINT8):
        expected = "float or uint8 pictures (batch, 1 or 3 channels, height, width)"
        raise PublishError(f"input {pictures.name}: expected {expected}, found {pictures.dtype} {pictures.shape}")
    if dims[0] is not None:
        raise PublishError(f"input {pictures.name}: expected a free batch, found {dims[0]}; {DYNAMIC}")
    height, width = dims[2:]
    size = (height, width) if height is not None and width is not None else None
    channels = dims[1] or 3  # some exporters declare the channels free
    reads_bytes = pictures.dtype == ir.DataType.UINT8
    return Interface(pictures, _scores(model, named), channels, size, reads_bytes, channels_last)


def _scores(model: ir.Model, named: bool) -> ir.Value:
    """The scores of classes: the output `logits`, else the only output. Raises PublishError."""
    outputs = [*model.graph.outputs]
    logits = [value for value in outputs if value.name == OUTPUT_NAME]
    if len(outputs) != 1 and not logits:
        keep = "vitbn rewrite --read NAME keeps one of them"
        raise PublishError(f"expected one output, the scores of classes, found {_names(outputs)}; {keep}")
    scores = (logits or outputs)[0]
    if not named and any(word in (scores.name or "").lower() for word in NO_SCORES):
        raise PublishError(f"output {scores.name}: expected scores of classes, found others; --labels names classes")
    if scores.dtype not in FLOATS or (scores.shape is not None and len(scores.shape) != 2):
        expected = "float scores (batch, classes)"
        raise PublishError(f"output {scores.name}: expected {expected}, found {scores.dtype} {scores.shape}")
    return _before_softmax(scores)


def _before_softmax(scores: ir.Value) -> ir.Value:
    """The input of a Softmax that ends the network, because clients compute probabilities themselves; else `scores`."""
    value = scores
    while (node := value.producer()) is not None and node.op_type in VALUE_PRESERVING and node.inputs[0] is not None:
        value = node.inputs[0]
    if node is None or node.domain:
        return scores
    if node.op_type == "Sigmoid":
        raise PublishError(f"output {scores.name}: expected scores of classes that exclude each other, found Sigmoid")
    before = node.inputs[0]
    return before if node.op_type == "Softmax" and before is not None else scores


def _names(values: list[ir.Value]) -> str:
    return ", ".join(str(value.name) for value in values) or "none"


def with_uint8_input(model: ir.Model, processor: Processor, named: bool) -> ir.Model:
    """A copy of `model` with the input `image`, the processor's normalisation, and the output `logits`.

    `named`: as of `interface`. Raises PublishError.
    """
    copy = model.clone()
    network, graph = interface(copy, named), copy.graph
    for value in (*graph.inputs, *(output for node in graph for output in node.outputs)):
        if value.name in (INPUT_NAME, OUTPUT_NAME):
            value.name = f"{value.name}_inside"
    pictures, scores = network.pictures, network.scores
    free = pictures.shape.dims[0] if pictures.shape is not None else None
    batch = free if isinstance(free, ir.SymbolicDim) and free.value else "batch"
    shape = ir.Shape([batch, network.channels, *processor.size])
    image = ir.Value(name=INPUT_NAME, type=ir.TensorType(ir.DataType.UINT8), shape=shape)
    nodes = _normalisation(copy, image, processor, network)
    normalised = nodes[-1].outputs[0] if nodes else image
    for use in [*pictures.uses()]:  # a Cast to the type that the input has hides the first layer from the passes
        to = use.node.attributes.get("to") if use.node.op_type == "Cast" else None
        if to is not None and ir.DataType(to.as_int()) == pictures.dtype:
            ir.convenience.replace_all_uses_with(use.node.outputs[0], pictures)
    ir.convenience.replace_all_uses_with(pictures, normalised)
    graph.inputs[:] = [image]
    if len(graph):
        graph.insert_before(graph[0], nodes)
    last = ir.node("Cast", [scores], attributes={"to": ir.DataType.FLOAT.value})
    if scores.dtype == ir.DataType.FLOAT:
        last = ir.node("Identity", [scores])
    logits = last.outputs[0]
    logits.name, logits.type = OUTPUT_NAME, ir.TensorType(ir.DataType.FLOAT)
    graph.append(last)
    graph.outputs[:] = [logits]
    return copy


def _normalisation(model: ir.Model, image: ir.Value, processor: Processor, network: Interface) -> list[ir.Node]:
    """The nodes from `image`, uint8 (batch, C, H, W), to the network's input; none if both are the same."""
    constants, floats = Constants(model.graph), ir.DataType.FLOAT
    nodes = Nodes(constants, "pixels")
    pixels = image
    if not network.reads_bytes:
        levels = nodes.gather(image, nodes.integers([2, 1, 0]), 1) if processor.bgr else image
        scaled = nodes.add("Mul", [nodes.cast(levels, floats), constants.add(processor.scale, "scale", floats)])
        shifted = nodes.add("Add", [scaled, constants.add(processor.shift, "shift", floats)])
        pixels = nodes.cast(shifted, network.pictures.dtype or floats)
    if network.channels_last:
        nodes.transpose(pixels, FIRST_TO_LAST)
    return nodes.list
