"""Checks the precision of a TensorRT engine, layer by layer.

In: the inspector's JSON and the ONNX graph. Out: counts, or LayerTypesDiffer. Element types stand under
"Format/Datatype" up to TensorRT 10, under "Datatype" from 11 on.
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
COMPUTED_IN = {"fp32": {"float32"}, "tf32": {"float32", "tfloat32"}, "fp16": {"float16"}}
# The inspector's words, as in "Half" or "Row major linear FP16 format".
WORDS = {"Half": "float16", "FP16": "float16", "Float": "float32", "FP32": "float32", "TF32": "tfloat32"}
WORDS |= {"BFloat16": "bfloat16", "BF16": "bfloat16", "FP8": "float8", "Int8": "int8"}
ONNX_TYPES: dict[int, str] = {TensorProto.FLOAT: "float32", TensorProto.FLOAT16: "float16"}


class LayerTypesDiffer(ExportError):
    pass


def check_layers(information: str, proto: onnx.ModelProto, precision: str) -> dict[str, int]:
    """Counts, by type, the layers with a MatMul, Gemm or Conv of `proto`; empty if the inspector hides their types.

    A layer may hold only the types of its ONNX nodes: a float32 Softmax stays. A layer with products must hold a type
    of `precision`. Raises LayerTypesDiffer.
    """
    asked, nodes, types = COMPUTED_IN[precision], {node.name: node for node in proto.graph.node}, element_types(proto)
    counted: Counter[str] = Counter()
    for layer in json.loads(information)["Layers"]:
        if not isinstance(layer, dict):
            continue  # only a name
        told = re.findall(r"\[ONNX Layer: ([^\]]+)\]", layer.get("Metadata", ""))
        origin = [nodes[name] for name in told or layer.get("Name", "").split(" + ") if name in nodes]
        tensors = {name for node in origin for name in (*node.input, *node.output)} if origin else types.keys()
        allowed = {ONNX_TYPES[types[name]] for name in tensors if types.get(name) in ONNX_TYPES}
        if precision == "tf32" and "float32" in allowed:
            allowed.add("tfloat32")
        found = _layer_types(layer)
        computes = any(node.op_type in PRODUCTS for node in origin)
        if found - allowed or (found and computes and not asked & found):
            expected = " and ".join(sorted(allowed if found - allowed else asked)) or "no floats"
            raise LayerTypesDiffer(
                f"layer {layer.get('Name')}: expected {expected}, found {' and '.join(sorted(found))}"
            )
        if found and computes:
            counted[" and ".join(sorted(found))] += 1
    return dict(counted)


def _layer_types(layer: dict[str, Any]) -> set[str]:
    tensors = [*layer.get("Inputs", ()), *layer.get("Outputs", ())]
    texts = [tensor.get("Datatype") or tensor.get("Format/Datatype") or "" for tensor in tensors]
    if isinstance(layer.get("Weights"), dict):
        texts.append(layer["Weights"].get("Type", ""))
    return {WORDS[word] for text in texts for word in re.findall(r"\w+", text) if word in WORDS}
