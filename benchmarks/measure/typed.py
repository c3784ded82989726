"""Float32 ONNX graphs in the types of TensorRT's strongly typed networks.

In: a float32 graph and images to calibrate with. Out: a graph in bfloat16, or with pairs of QuantizeLinear and
DequantizeLinear at the weighted products in int8 or float8 (E4M3). TensorRT quantises symmetrically, biases not at all.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from export.equivalence import Images
from export.precision import to_fp16, to_int8

TYPED = ("bf16", "int8", "fp8")
OPSET = 22  # the first with bfloat16 convolutions; none of our operators changes between 20 and it but in types
LARGEST = {"int8": 127, "fp8": 448}  # finite values


def for_tensorrt(proto: onnx.ModelProto, precision: str, train_images: Images) -> onnx.ModelProto:
    """`precision`: one of TYPED. Raises onnx.checker.ValidationError for a graph that is not valid afterwards."""
    if precision == "bf16":
        typed = _to_bf16(proto)
    else:
        typed = to_int8(proto, train_images, symmetric=True)
        if precision == "fp8":
            _to_fp8(typed, proto)
    onnx.checker.check_model(typed, full_check=True)
    return typed


def _to_bf16(proto: onnx.ModelProto) -> onnx.ModelProto:
    """As in float16, with the weights rounded from float32."""
    typed, own = to_fp16(proto), _weights(proto)
    typed.opset_import[0].version = OPSET
    for tensor in typed.graph.initializer:
        if tensor.data_type == TensorProto.FLOAT16:
            _set(tensor, own.get(tensor.name, numpy_helper.to_array(tensor)), ml_dtypes.bfloat16)
    for node in typed.graph.node:
        for attribute in node.attribute:
            if node.op_type == "Cast" and attribute.i == TensorProto.FLOAT16:
                attribute.i = TensorProto.BFLOAT16
            if attribute.t.data_type == TensorProto.FLOAT16:
                _set(attribute.t, numpy_helper.to_array(attribute.t), ml_dtypes.bfloat16)
    return typed


def _to_fp8(quantized: onnx.ModelProto, proto: onnx.ModelProto) -> None:
    """Every scale so that the largest value stays the largest; weights rounded from float32."""
    own, tensors = _weights(proto), {tensor.name: tensor for tensor in quantized.graph.initializer}
    pairs = [node for node in quantized.graph.node if node.op_type in ("QuantizeLinear", "DequantizeLinear")]
    for name in {node.input[1] for node in pairs}:
        scale = numpy_helper.to_array(tensors[name])
        _set(tensors[name], scale * LARGEST["int8"] / LARGEST["fp8"], np.float32)
    for name in {node.input[2] for node in pairs}:
        _set(tensors[name], numpy_helper.to_array(tensors[name]), ml_dtypes.float8_e4m3fn)
    for node in pairs:
        if node.input[0] in tensors:
            weight, scale = own[node.input[0].removesuffix("_quantized")], numpy_helper.to_array(tensors[node.input[1]])
            (axis,) = (attribute.i for attribute in node.attribute if attribute.name == "axis")
            shape = [-1 if place == axis else 1 for place in range(weight.ndim)]
            _set(tensors[node.input[0]], weight / scale.reshape(shape), ml_dtypes.float8_e4m3fn)
    del quantized.graph.value_info[:]  # stale types


def _weights(proto: onnx.ModelProto) -> dict[str, Any]:
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in proto.graph.initializer}


def _set(tensor: onnx.TensorProto, value: Any, dtype: Any) -> None:
    tensor.CopyFrom(numpy_helper.from_array(np.asarray(value).astype(dtype), tensor.name))
