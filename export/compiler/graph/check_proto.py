"""Refuses a file whose parts onnx_ir does not read, or reads as something else.

In: the model's message and its path. Out: nothing; or BadRequest for a damaged part and NotSupported for a sparse one,
with its name.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from itertools import chain
from pathlib import Path

import onnx
import onnx_ir as ir

from export.compiler.errors import BadRequest, NotSupported
from export.compiler.graph.input_defaults import LEAST_IR_VERSION

NUMBERS = {"FLOAT": "float_data", "DOUBLE": "double_data", "INT64": "int64_data"}  # without raw data


def check_parts(proto: onnx.ModelProto, path: Path) -> None:
    """Raises BadRequest or NotSupported."""
    graph = proto.graph
    nodes = list(chain(graph.node, *(function.node for function in proto.functions)))
    sparse = [tensor.values.name for tensor in graph.sparse_initializer]
    sparse += [node.output[0] for node in nodes for part in node.attribute if part.HasField("sparse_tensor")]
    if sparse:
        raise NotSupported(f"{path}: expected dense weights, found the sparse {sparse[0]!r}")
    held = [part.t for node in nodes for part in node.attribute if part.HasField("t")]
    for tensor in chain(graph.initializer, held):
        if (damage := _damage(tensor)) is not None:
            raise BadRequest(f"{path}: weight {tensor.name!r}: expected {damage}")
    for kind, parts in (("input", graph.input), ("output", graph.output)):
        if twice := _twice(part.name for part in parts):
            raise BadRequest(f"{path}: expected each {kind} once, found {twice!r} twice")
    apart = {tensor.name for tensor in graph.initializer} - {value.name for value in graph.input}
    if apart and proto.ir_version < LEAST_IR_VERSION:
        expected = "expected every weight among the inputs"
        raise BadRequest(f"{path}: IR version {proto.ir_version}: {expected}, found {min(apart)!r} apart")


def _damage(tensor: onnx.TensorProto) -> str | None:
    """What was expected, and found."""
    try:
        kind = ir.DataType(tensor.data_type)
    except ValueError:
        return f"a type of ONNX, found number {tensor.data_type}"
    if not kind or min(tensor.dims, default=0) < 0:
        return f"a type and sizes, found {kind.name} {(*tensor.dims,)}"
    if kind == ir.DataType.STRING:
        return None
    size = math.ceil(math.prod(tensor.dims) * kind.bitwidth / 8)
    found = [len(tensor.raw_data)] if tensor.HasField("raw_data") else []
    is_beside = tensor.data_location == onnx.TensorProto.EXTERNAL  # its length may be left out
    for entry in tensor.external_data if is_beside else ():
        if entry.key in ("offset", "length"):
            if not entry.value.isdecimal():
                return f"a number of bytes as {entry.key}, found {entry.value!r}"
            found += [int(entry.value)] if entry.key == "length" else []
    unit = "bytes"
    if not found and not is_beside and kind.name in NUMBERS:
        found, size, unit = [len(getattr(tensor, NUMBERS[kind.name]))], math.prod(tensor.dims), "numbers"
    if found and found[0] != size:
        return f"{size:,} {unit} for {kind.name} {(*tensor.dims,)}, found {found[0]:,}"
    return None


def _twice(names: Iterable[str]) -> str | None:
    return next((name for name, count in Counter(names).items() if count > 1), None)
