"""Another's graph -> the same network behind the served tensors: `image` uint8 in, `logits` float32 out.

In: a model that reads floats (batch, C, H, W) or (batch, H, W, C), and a `Processor`. Out: a copy with Cast, Mul and
Add before it, which the compiler then folds into the first linear layer; PublishError for another kind of network.
"""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from export.compiler.graph.constants import Constants
from export.compiler.graph.nodes import Nodes
from export.errors import PublishError
from export.pictures.processor import Processor, Size
from models.networks.config import INPUT_NAME, OUTPUT_NAME

FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16)
NO_SCORES = ("embed", "hidden", "pooler", "feature", "attention", "attn")
PASSING = ("Identity", "Cast", "Flatten", "Reshape", "Squeeze")
LAST_TO_FIRST, FIRST_TO_LAST = (0, 3, 1, 2), (0, 2, 3, 1)
DYNAMIC = "torch.onnx.export has dynamic_shapes, or dynamic_axes, for it"


@dataclass(frozen=True)
class Interface:
    """Of the original. `size`: height and width; None: free. `reads_bytes`: it normalises by itself.

    `channels_last`: it reads (batch, H, W, C).
    """

    given: ir.Value
    scores: ir.Value
    channels: int
    size: Size | None
    reads_bytes: bool
    channels_last: bool


def interface(model: ir.Model, named: bool) -> Interface:
    """`named`: the user names the classes, so the output has scores. Raises PublishError."""
    inputs = [value for value in model.graph.inputs if value.name not in model.graph.initializers]
    if len(inputs) != 1:
        raise PublishError(f"expected a network of one input, pictures, found {_names(inputs)}")
    given = inputs[0]
    shape = given.shape.dims if given.shape is not None else ()
    dims = [dim if isinstance(dim, int) and dim > 0 else None for dim in shape]  # Paddle writes -1
    if last := len(dims) == 4 and dims[1] not in (1, 3) and dims[3] in (1, 3):
        dims = [dims[axis] for axis in LAST_TO_FIRST]
    if len(dims) != 4 or dims[1] not in (1, 3, None) or given.dtype not in (*FLOATS, ir.DataType.UINT8):
        expected = "float or uint8 pictures (batch, 1 or 3 channels, height, width)"
        raise PublishError(f"input {given.name}: expected {expected}, found {given.dtype} {given.shape}")
    if dims[0] is not None:
        raise PublishError(f"input {given.name}: expected a free batch, found {dims[0]}; {DYNAMIC}")
    height, width = dims[2:]
    size = (height, width) if height is not None and width is not None else None
    channels = dims[1] or 3  # exporters declare them free
    return Interface(given, _scores(model, named), channels, size, given.dtype == ir.DataType.UINT8, last)


def _scores(model: ir.Model, named: bool) -> ir.Value:
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
    """Clients make the probabilities themselves."""
    value = scores
    while (node := value.producer()) is not None and node.op_type in PASSING and node.inputs[0] is not None:
        value = node.inputs[0]
    if node is None or node.domain:
        return scores
    if node.op_type == "Sigmoid":
        raise PublishError(f"output {scores.name}: expected scores of classes that exclude each other, found Sigmoid")
    given = node.inputs[0]
    return given if node.op_type == "Softmax" and given is not None else scores


def _names(values: list[ir.Value]) -> str:
    return ", ".join(str(value.name) for value in values) or "none"


def behind_bytes(model: ir.Model, processor: Processor, named: bool) -> ir.Model:
    """The caller's model stays as it is. Raises PublishError."""
    own = model.clone()
    found, graph = interface(own, named), own.graph
    for value in (*graph.inputs, *(output for node in graph for output in node.outputs)):
        if value.name in (INPUT_NAME, OUTPUT_NAME):
            value.name = f"{value.name}_inside"
    free = found.given.shape.dims[0] if found.given.shape is not None else None
    batch = free if isinstance(free, ir.SymbolicDim) and free.value else "batch"
    shape = ir.Shape([batch, found.channels, *processor.size])
    image = ir.Value(name=INPUT_NAME, type=ir.TensorType(ir.DataType.UINT8), shape=shape)
    nodes = _before(own, image, processor, found)
    start = nodes[-1].outputs[0] if nodes else image
    for use in [*found.given.uses()]:  # a Cast to the type that it has hides the first layer from the passes
        held = use.node.attributes.get("to") if use.node.op_type == "Cast" else None
        if held is not None and ir.DataType(held.as_int()) == found.given.dtype:
            ir.convenience.replace_all_uses_with(use.node.outputs[0], found.given)
    ir.convenience.replace_all_uses_with(found.given, start)
    graph.inputs[:] = [image]
    if len(graph):
        graph.insert_before(graph[0], nodes)
    last = ir.node("Cast", [found.scores], attributes={"to": ir.DataType.FLOAT.value})
    if found.scores.dtype == ir.DataType.FLOAT:
        last = ir.node("Identity", [found.scores])
    logits = last.outputs[0]
    logits.name, logits.type = OUTPUT_NAME, ir.TensorType(ir.DataType.FLOAT)
    graph.append(last)
    graph.outputs[:] = [logits]
    return own


def _before(model: ir.Model, image: ir.Value, processor: Processor, found: Interface) -> list[ir.Node]:
    constants, floats = Constants(model.graph), ir.DataType.FLOAT
    nodes = Nodes(constants, "pixels")
    pixels = image
    if not found.reads_bytes:
        levels = nodes.gather(image, nodes.integers([2, 1, 0]), 1) if processor.bgr else image
        scaled = nodes.add("Mul", [nodes.cast(levels, floats), constants.add(processor.scale, "scale", floats)], floats)
        shifted = nodes.add("Add", [scaled, constants.add(processor.shift, "shift", floats)], floats)
        pixels = nodes.cast(shifted, found.given.dtype or floats)
    if found.channels_last:
        nodes.transpose(pixels, FIRST_TO_LAST)
    return nodes.list
