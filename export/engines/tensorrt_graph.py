"""An ONNX graph for TensorRT's parser, and the types that its engine computes in.

In: a graph, uint8 images -> float32 logits. Out: the graph with the input of Shape moved; of a built engine, counts of
layers by type, or LayerTypesDiffer.
"""

from __future__ import annotations

import json
import re
from collections import Counter

import onnx
from onnx import shape_inference

from export.errors import ExportError

# The type asked for first; a float16 graph keeps its Softmax in float32.
ALLOWED = {"fp32": ("float32",), "tf32": ("float32", "tfloat32"), "fp16": ("float16", "float32")}
# The inspector's words, as in "Half" (11) or "Row major linear FP16 format" (10).
WORDS = {"Half": "float16", "FP16": "float16", "Float": "float32", "FP32": "float32", "TF32": "tfloat32"}
WORDS |= {"BFloat16": "bfloat16", "BF16": "bfloat16", "FP8": "float8", "Int8": "int8"}


class UnsupportedGraph(ExportError):
    pass


class LayerTypesDiffer(ExportError):
    pass


def prepare(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Reads the batch size after the images' Cast: TensorRT accepts uint8 only as input of Cast.

    Raises UnsupportedGraph.
    """
    prepared = onnx.ModelProto()
    prepared.CopyFrom(proto)
    nodes = prepared.graph.node
    for image in prepared.graph.input:
        cast = next((node for node in nodes if node.op_type == "Cast" and image.name in node.input), None)
        asking = [node for node in nodes if node.op_type == "Shape" and image.name in node.input]
        if cast and asking:
            for node in asking:
                node.input[0] = cast.output[0]
            ordered = [cast, *(node for node in nodes if node is not cast)]  # before the Shape nodes
            del nodes[:]
            nodes.extend(ordered)
    try:
        onnx.checker.check_model(prepared, full_check=True)
    except (onnx.checker.ValidationError, shape_inference.InferenceError) as error:
        raise UnsupportedGraph(f"ONNX: expected a valid graph, found {' '.join(str(error).split())}") from error
    return prepared


def check_layers(information: str, precision: str) -> dict[str, int]:
    """Counts the layers by the float types that they hold; empty if the inspector's JSON hides them.

    Those of `precision` must be there, and in float32 no other. Raises LayerTypesDiffer.
    """
    allowed = ALLOWED[precision]
    counted: Counter[str] = Counter()
    for layer in json.loads(information)["Layers"]:
        if not isinstance(layer, dict):
            continue  # only a name
        tensors = [*layer.get("Inputs", ()), *layer.get("Outputs", ())]
        texts = [tensor.get("Datatype") or tensor.get("Format/Datatype") or "" for tensor in tensors]
        found = {WORDS[word] for text in texts for word in re.findall(r"\w+", text) if word in WORDS}
        if found - {*allowed}:
            names = " and ".join(sorted(found))
            raise LayerTypesDiffer(f"layer {layer.get('Name')}: expected {' or '.join(allowed)}, found {names}")
        counted.update([" and ".join(sorted(found))] if found else [])
    if counted and not any(allowed[0] in types for types in counted):
        raise LayerTypesDiffer(f"expected layers in {allowed[0]}, found {', '.join(counted)} alone")
    return dict(counted)
