"""Checks the precision of a built TensorRT engine from its inspector's report on every layer.

In: the inspector's JSON and the ONNX graph. Out: counts of product layers by type, or LayerTypesDiffer. The element
types stand under "Format/Datatype" up to TensorRT 10 and under "Datatype" from 11 on. A fused layer names its ONNX
nodes under "Metadata" or, joined by " + ", in its name.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import Any

import onnx
from onnx import TensorProto

from export.engines.tensorrt_support import element_types
from export.errors import ExportError

PRODUCTS = ("MatMul", "Gemm", "Conv")
PRECISIONS = {"fp32": "float32", "fp16": "float16"}

# The inspector's words, as in "Half" or "Row major linear FP16 format". Integers compute no logits.
WORDS = {
    "Half": "float16",
    "FP16": "float16",
    "Float": "float32",
    "FP32": "float32",
    "TF32": "tfloat32",
    "BFloat16": "bfloat16",
    "BF16": "bfloat16",
    "FP8": "float8",
    "Int8": "int8",
}
ONNX_TYPES: dict[int, str] = {TensorProto.FLOAT: "float32", TensorProto.FLOAT16: "float16"}


class LayerTypesDiffer(ExportError):
    """A layer in another precision than the wanted one. The message names the layer."""


def check_layers(information: str, proto: onnx.ModelProto, precision: str) -> dict[str, int]:
    """Counts, by type, the engine's layers with a MatMul, Gemm or Conv of `proto`.

    `precision` is fp32 or fp16. A layer may hold only the types of its ONNX nodes: a Softmax in float32 stays there. A
    layer that computes products must hold `precision`. Raises LayerTypesDiffer, also if the inspector reports no such
    layer.
    """
    asked, nodes, types = PRECISIONS[precision], {node.name: node for node in proto.graph.node}, element_types(proto)
    anywhere = {ONNX_TYPES[number] for number in types.values() if number in ONNX_TYPES}
    counted: Counter[str] = Counter()
    for layer in json.loads(information)["Layers"]:
        if not isinstance(layer, dict):
            raise LayerTypesDiffer(f"inspector: expected the types of every layer, found only the name {layer!r}")
        origin = [nodes[name] for name in _onnx_names(layer) if name in nodes]
        allowed = {name for node in origin for name in _float_types(node, types)} if origin else anywhere
        found = _layer_types(layer)
        if found - allowed:
            raise _differ(layer, allowed or {"no floats"}, found)
        if found and any(node.op_type in PRODUCTS for node in origin):
            if asked not in found:
                raise _differ(layer, {asked}, found)
            counted[" and ".join(sorted(found))] += 1
    if not counted:
        raise LayerTypesDiffer(f"inspector: expected layers that compute in {asked}, found none whose types it tells")
    return dict(counted)


def _onnx_names(layer: dict[str, Any]) -> list[str]:
    told = re.findall(r"\[ONNX Layer: ([^\]]+)\]", layer.get("Metadata", ""))
    return told or layer.get("Name", "").split(" + ")


def _float_types(node: onnx.NodeProto, types: dict[str, int]) -> set[str]:
    numbers = (types.get(name, TensorProto.UNDEFINED) for name in (*node.input, *node.output))
    return {ONNX_TYPES[number] for number in numbers if number in ONNX_TYPES}


def _layer_types(layer: dict[str, Any]) -> set[str]:
    """Types of a layer's inputs, outputs and weights; with a dynamic batch the inspector does not tell all."""
    tensors = [*layer.get("Inputs", ()), *layer.get("Outputs", ())]
    texts = [tensor.get("Datatype") or tensor.get("Format/Datatype") or "" for tensor in tensors]
    if isinstance(layer.get("Weights"), dict):
        texts.append(layer["Weights"].get("Type", ""))
    return {WORDS[word] for text in texts for word in re.findall(r"\w+", text) if word in WORDS}


def _differ(layer: dict[str, Any], expected: set[str], found: set[str]) -> LayerTypesDiffer:
    expected_names, found_names = (" and ".join(sorted(names)) for names in (expected, found))
    return LayerTypesDiffer(f"layer {layer.get('Name')}: expected {expected_names}, found {found_names}")
