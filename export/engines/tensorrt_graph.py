"""An ONNX graph for TensorRT's parser, and the types that its engine computes in.

In: a graph, uint8 images -> float32 logits. Out: the graph with the input of Shape moved; of a built engine, counts of
layers by type, or LayerTypesDiffer.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import Any

import onnx
from onnx import TensorProto, shape_inference

from export.errors import ExportError

PRODUCTS = ("MatMul", "Gemm", "Conv")
COMPUTED_IN = {"fp32": {"float32"}, "tf32": {"float32", "tfloat32"}, "fp16": {"float16"}}
# The inspector's words, as in "Half" (11) or "Row major linear FP16 format" (10).
WORDS = {"Half": "float16", "FP16": "float16", "Float": "float32", "FP32": "float32", "TF32": "tfloat32"}
WORDS |= {"BFloat16": "bfloat16", "BF16": "bfloat16", "FP8": "float8", "Int8": "int8"}
ONNX_TYPES: dict[int, str] = {TensorProto.FLOAT: "float32", TensorProto.FLOAT16: "float16"}


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


def element_types(proto: onnx.ModelProto) -> dict[str, int]:
    """Tensor name -> element type for the whole graph; 0 where inference fails."""
    bare = onnx.ModelProto()
    bare.CopyFrom(proto)
    del bare.graph.value_info[:]  # the conversion to float16 leaves stale types
    graph = shape_inference.infer_shapes(bare).graph
    types = {value.name: value.type.tensor_type.elem_type for value in (*graph.value_info, *graph.input, *graph.output)}
    return types | {tensor.name: tensor.data_type for tensor in graph.initializer}


def check_layers(information: str, proto: onnx.ModelProto, precision: str) -> dict[str, int]:
    """Counts, by type, the layers with a product of `proto`; none if the inspector's JSON hides their types.

    They hold a type of `precision`, and only types of their ONNX nodes: a float32 Softmax stays. Raises
    LayerTypesDiffer.
    """
    asked, nodes, types = COMPUTED_IN[precision], {node.name: node for node in proto.graph.node}, element_types(proto)
    counted: Counter[str] = Counter()
    for layer in json.loads(information)["Layers"]:
        if not isinstance(layer, dict):
            continue  # only a name
        told = re.findall(r"\[ONNX Layer: ([^\]]+)\]", layer.get("Metadata", ""))
        origin = [nodes[name] for name in told or layer.get("Name", "").split(" + ") if name in nodes]
        found = _layer_types(layer)
        if not found or not any(node.op_type in PRODUCTS for node in origin):
            continue
        tensors = {name for node in origin for name in (*node.input, *node.output)}
        allowed = {ONNX_TYPES[types[name]] for name in tensors if types.get(name) in ONNX_TYPES}
        allowed |= asked if precision == "tf32" else set()
        if found - allowed or not asked & found:
            expected = " and ".join(sorted(allowed if found - allowed else asked))
            raise LayerTypesDiffer(
                f"layer {layer.get('Name')}: expected {expected}, found {' and '.join(sorted(found))}"
            )
        counted[" and ".join(sorted(found))] += 1
    return dict(counted)


def _layer_types(layer: dict[str, Any]) -> set[str]:
    tensors = [*layer.get("Inputs", ()), *layer.get("Outputs", ())]
    texts = [tensor.get("Datatype") or tensor.get("Format/Datatype") or "" for tensor in tensors]
    if isinstance(layer.get("Weights"), dict):
        texts.append(layer["Weights"].get("Type", ""))
    return {WORDS[word] for text in texts for word in re.findall(r"\w+", text) if word in WORDS}
