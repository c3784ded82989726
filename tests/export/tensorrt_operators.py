"""Checks a graph against the documented operators of TensorRT's parser, without TensorRT.

Source: onnx-tensorrt, docs/operators.md of TensorRT 10.15; the operator pages of TensorRT 11 (Shape takes no uint8).
"""

from collections.abc import Iterator

import onnx
from onnx import TensorProto, numpy_helper

from export.engines.tensorrt_graph import UnsupportedGraph, element_types, prepare

OPSETS = range(9, 25)

FLOATS = frozenset({TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16})
NUMBERS = FLOATS | {TensorProto.INT32, TensorProto.INT64}
ANY = NUMBERS | {TensorProto.BOOL}
QUANTISED = FLOATS | {TensorProto.INT8, TensorProto.FLOAT8E4M3FN}

# Our exports' operators and their element types. TensorRT accepts uint8 only as the graph's input or output, at a Cast.
OPERATORS = {
    "Add": NUMBERS,
    "BatchNormalization": FLOATS,
    "Cast": ANY | {TensorProto.UINT8},
    "Clip": NUMBERS,
    "Concat": ANY,
    "Constant": ANY,
    "Conv": FLOATS,
    "DequantizeLinear": QUANTISED,
    "Div": NUMBERS,
    "Erf": FLOATS,
    "Expand": ANY,
    "Gather": ANY,
    "Gelu": FLOATS,
    "Gemm": FLOATS,
    "LayerNormalization": FLOATS,
    "MatMul": FLOATS,
    "MaxPool": FLOATS,
    "Mul": NUMBERS,
    "Pad": NUMBERS,
    "Pow": FLOATS,
    "QuantizeLinear": QUANTISED,
    "Reciprocal": FLOATS,
    "ReduceMax": NUMBERS,
    "ReduceMean": NUMBERS,
    "ReduceMin": NUMBERS,
    "Relu": NUMBERS,
    "Reshape": ANY,
    "Shape": ANY,
    "Sigmoid": FLOATS,
    "Slice": ANY,
    "Softmax": FLOATS,
    "Split": ANY,
    "Sqrt": FLOATS,
    "Sub": NUMBERS,
    "Transpose": ANY,
    "Unsqueeze": ANY,
}
CONSTANT_INPUTS = {name: {1: "axes"} for name in ("ReduceMax", "ReduceMean", "ReduceMin")}


def prepared_and_checked(proto: onnx.ModelProto) -> onnx.ModelProto:
    ready = prepare(proto)
    check(ready)
    return ready


def check(proto: onnx.ModelProto) -> None:
    for opset in proto.opset_import:
        if opset.domain in ("", "ai.onnx") and opset.version not in OPSETS:
            raise UnsupportedGraph(f"ONNX: expected opset {OPSETS[0]} to {OPSETS[-1]}, found {opset.version}")
    for node in proto.graph.node:
        if node.domain not in ("", "ai.onnx") or node.op_type not in OPERATORS:
            found = f"{node.domain}.{node.op_type}".lstrip(".")
            raise _unsupported(node, "an operator that TensorRT takes", found)
        _check_symmetric(node, proto)
    types = element_types(proto)
    constants = {tensor.name for tensor in proto.graph.initializer}
    constants |= {node.output[0] for node in proto.graph.node if node.op_type == "Constant"}
    inputs, outputs = ({value.name for value in values} for values in (proto.graph.input, proto.graph.output))
    for node in proto.graph.node:
        for name, type_name in _of_other_types(node, types):
            raise _unsupported(node, f"a type of {name} that TensorRT's {node.op_type} takes", type_name)
        _check_uint8(node, types, inputs, outputs)
        for index, role in CONSTANT_INPUTS.get(node.op_type, {}).items():
            if len(node.input) > index and node.input[index] not in constants | {""}:
                raise _unsupported(node, f"constant {role}", f"{node.input[index]}, which is computed")


def _of_other_types(node: onnx.NodeProto, types: dict[str, int]) -> Iterator[tuple[str, str]]:
    """Name and type of each tensor that the operator's row does not list."""
    allowed = OPERATORS[node.op_type]
    for name in filter(None, (*node.input, *node.output)):
        found = types.get(name, TensorProto.UNDEFINED)
        if found not in allowed:
            yield name, TensorProto.DataType.Name(found)


def _check_uint8(node: onnx.NodeProto, types: dict[str, int], inputs: set[str], outputs: set[str]) -> None:
    for names, whole, what in ((node.input, inputs, "input"), (node.output, outputs, "output")):
        for name in names:
            if types.get(name) == TensorProto.UINT8 and name not in whole:
                raise _unsupported(node, f"uint8 only as an {what} of the graph", f"{name}, which lies inside")


def _check_symmetric(node: onnx.NodeProto, proto: onnx.ModelProto) -> None:
    if node.op_type not in ("QuantizeLinear", "DequantizeLinear"):
        return
    (zero,) = (tensor for tensor in proto.graph.initializer if tensor.name == node.input[2])
    if numpy_helper.to_array(zero).astype(float).any():
        raise _unsupported(node, "a zero point of 0", f"another in {zero.name}")


def _unsupported(node: onnx.NodeProto, expected: str, found: str) -> UnsupportedGraph:
    return UnsupportedGraph(
        f"ONNX node {node.name or node.output[0]} ({node.op_type}): expected {expected}, found {found}"
    )
