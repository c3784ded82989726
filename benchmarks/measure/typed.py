"""Float32 ONNX graphs in the types of TensorRT's strongly typed networks.

In: a float32 graph and images to calibrate with. Out: a graph in bfloat16, or with pairs of QuantizeLinear and
DequantizeLinear at the weighted products in int8. TensorRT quantises symmetrically, biases not at all.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from export.equivalence import Images
from export.precision import to_fp16, to_int8

TYPED = ("bf16", "int8")
OPSET = 22  # the first with bfloat16 convolutions; none of our operators changes between 20 and it but in types


def for_tensorrt(proto: onnx.ModelProto, precision: str, train_images: Images) -> onnx.ModelProto:
    """`precision`: one of TYPED. Raises onnx.checker.ValidationError for a graph that is not valid afterwards."""
    typed = _to_bf16(proto) if precision == "bf16" else to_int8(proto, train_images, symmetric=True)
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


def _weights(proto: onnx.ModelProto) -> dict[str, Any]:
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in proto.graph.initializer}


def _set(tensor: onnx.TensorProto, value: Any, dtype: Any) -> None:
    tensor.CopyFrom(numpy_helper.from_array(np.asarray(value).astype(dtype), tensor.name))
