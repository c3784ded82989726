"""Refuses a model whose protobuf message holds parts that onnx_ir does not read, or reads as something else.

In: the model's message, and the file's path for error messages. Out: nothing. Raises BadRequest for a damaged part and
NotSupported for sparse weights, or for a node at which ONNX Runtime would end the process; both name the part.
"""

from __future__ import annotations

import math
from collections import Counter
from itertools import chain
from pathlib import Path

import onnx
import onnx_ir as ir

from export.compiler.errors import BadRequest, NotSupported
from export.compiler.graph.input_defaults import LEAST_IR_VERSION

TYPED_FIELDS = {"FLOAT": "float_data", "DOUBLE": "double_data", "INT64": "int64_data"}  # of a tensor without raw data


def check_proto(proto: onnx.ModelProto, path: Path) -> None:
    """Raises BadRequest for a damaged weight or a repeated name, NotSupported for sparse weights or an unnamed bias."""
    graph = proto.graph
    nodes = list(chain(graph.node, *(function.node for function in proto.functions)))
    sparse = [tensor.values.name for tensor in graph.sparse_initializer]
    sparse += [node.output[0] for node in nodes for field in node.attribute if field.HasField("sparse_tensor")]
    if sparse:
        raise NotSupported(f"{path}: expected dense weights, found the sparse {sparse[0]!r}")
    unnamed = [node.name for node in nodes if node.op_type == "LayerNormalization" and [*node.input[2:]] == [""]]
    if unnamed:  # ONNX Runtime would end the process
        expected = "expected a bias, or two inputs, of LayerNormalization"
        raise NotSupported(f"{path}: {expected}, found a bias without a name at node {unnamed[0]!r}")
    constants = [field.t for node in nodes for field in node.attribute if field.HasField("t")]
    for tensor in chain(graph.initializer, constants):
        if (damage := _damage(tensor)) is not None:
            raise BadRequest(f"{path}: weight {tensor.name!r}: expected {damage}")
    for kind, values in (("input", graph.input), ("output", graph.output)):
        counts = Counter(value.name for value in values)
        if repeated := [name for name, count in counts.items() if count > 1]:
            raise BadRequest(f"{path}: expected each {kind} once, found {repeated[0]!r} twice")
    missing = {tensor.name for tensor in graph.initializer} - {value.name for value in graph.input}
    if missing and proto.ir_version < LEAST_IR_VERSION:
        expected = "expected every weight among the inputs"
        raise BadRequest(f"{path}: IR version {proto.ir_version}: {expected}, found {min(missing)!r} apart")


def _damage(tensor: onnx.TensorProto) -> str | None:
    """What the message was expected to hold, and what it holds; None for a tensor without damage."""
    try:
        kind = ir.DataType(tensor.data_type)
    except ValueError:
        return f"a type of ONNX, found number {tensor.data_type}"
    if not kind or min(tensor.dims, default=0) < 0:
        return f"a type and sizes, found {kind.name} {(*tensor.dims,)}"
    if kind == ir.DataType.STRING:
        return None
    size = math.ceil(math.prod(tensor.dims) * kind.bitwidth / 8)
    length = len(tensor.raw_data) if tensor.HasField("raw_data") else None
    is_external = tensor.data_location == onnx.TensorProto.EXTERNAL  # a file may leave out the length of such a weight
    for entry in tensor.external_data if is_external else ():
        if entry.key in ("offset", "length"):
            if not entry.value.isdecimal():
                return f"a number of bytes as {entry.key}, found {entry.value!r}"
            length = int(entry.value) if entry.key == "length" else length
    unit = "bytes"
    if length is None and not is_external and kind.name in TYPED_FIELDS:
        length, size, unit = len(getattr(tensor, TYPED_FIELDS[kind.name])), math.prod(tensor.dims), "numbers"
    if length not in (None, size):
        return f"{size:,} {unit} for {kind.name} {(*tensor.dims,)}, found {length:,}"
    return None
