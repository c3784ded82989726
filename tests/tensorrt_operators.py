"""Checks a graph against the documented operators of TensorRT's parser, without TensorRT.

Source: onnx-tensorrt, docs/operators.md of TensorRT 10.15; the operator pages of TensorRT 11 (Shape takes no uint8).
"""

import onnx
from onnx import TensorProto, numpy_helper
from stub_tensorrt import element_types

from export.engines.tensorrt_engine import EngineError, prepare

OPSETS = range(9, 25)
# Those of our exports.
OPERATORS = """
    Add BatchNormalization Cast Clip Concat Constant Conv DequantizeLinear Div Erf Expand Gather Gelu Gemm
    LayerNormalization MatMul MaxPool Mul Pad Pow QuantizeLinear Reciprocal ReduceMax ReduceMean ReduceMin Relu
    Reshape Shape Sigmoid Slice Softmax Split Sqrt Squeeze Sub Transpose Unsqueeze
"""


def prepared_and_checked(proto: onnx.ModelProto) -> onnx.ModelProto:
    ready = prepare(proto)
    check(ready)
    return ready


def check(proto: onnx.ModelProto) -> None:
    """uint8 is taken only as the graph's input, at a Cast; axes and zero points only as constants, and these 0."""
    for opset in proto.opset_import:
        if opset.domain in ("", "ai.onnx") and opset.version not in OPSETS:
            raise EngineError(f"ONNX: expected opset {OPSETS[0]} to {OPSETS[-1]}, found {opset.version}")
    types, images = element_types(proto), {value.name for value in proto.graph.input}
    constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in proto.graph.initializer}
    for node in proto.graph.node:
        if node.domain not in ("", "ai.onnx") or node.op_type not in OPERATORS.split():
            found = f"{node.domain}.{node.op_type}".lstrip(".")
            raise _unsupported(node, "an operator that TensorRT takes", found)
        for name in filter(None, (*node.input, *node.output)):
            cast = node.op_type == "Cast" and name in images
            if types.get(name, 0) in (TensorProto.UNDEFINED, TensorProto.UINT8) and not cast:
                found = TensorProto.DataType.Name(types.get(name, 0))
                raise _unsupported(node, f"a type of {name} that TensorRT's {node.op_type} takes", found)
        axes = node.op_type.startswith("Reduce") or node.op_type == "Squeeze"
        if axes and len(node.input) > 1 and node.input[1] not in constants:
            raise _unsupported(node, "constant axes", f"{node.input[1]}, which is computed")
        if node.op_type in ("QuantizeLinear", "DequantizeLinear") and constants[node.input[2]].astype(float).any():
            raise _unsupported(node, "a zero point of 0", f"another in {node.input[2]}")


def _unsupported(node: onnx.NodeProto, expected: str, found: str) -> EngineError:
    return EngineError(f"ONNX node {node.name or node.output[0]} ({node.op_type}): expected {expected}, found {found}")
