"""Refuses a model whose protobuf message holds parts that onnx_ir does not read, or reads as something else.

In: the model's message, and the file's path for error messages. Out: nothing. Raises BadRequest for a damaged part and
NotSupported for sparse weights, maps, or a node at which ONNX Runtime would end the process; both name the part.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path

import onnx
import onnx_ir as ir

from export.compiler.errors import BadRequest, NotSupported
from export.compiler.graph.input_defaults import LEAST_IR_VERSION

TYPED_FIELDS = {"FLOAT": "float_data", "DOUBLE": "double_data", "INT64": "int64_data"}  # of a tensor without raw data
# ONNX Runtime ends the process at a third input without a name, and at an output without a name.
UNNAMED_INPUT = {"LayerNormalization": "a bias", "DFT": "an axis"}
NAMED_OUTPUTS = ("BatchNormalization", "Loop", "Split")


def check_proto(proto: onnx.ModelProto, path: Path) -> None:
    """Raises BadRequest for a damaged weight or a repeated name, NotSupported for what the module's docstring lists.

    Looks into functions, branches and loops, too.
    """
    graph = proto.graph
    top = [*graph.node, *chain.from_iterable(function.node for function in proto.functions)]
    graphs = [graph, *_bodies(top)]
    nodes = [*top, *chain.from_iterable(body.node for body in graphs[1:])]
    sparse = [tensor.values.name for each in graphs for tensor in each.sparse_initializer]
    sparse += [node.output[0] for node in nodes for field in node.attribute if field.HasField("sparse_tensor")]
    if sparse:
        raise NotSupported(f"{path}: expected dense weights, found the sparse {sparse[0]!r}")
    for node in nodes:
        if (expected := _ends_onnx_runtime(node)) is not None:
            raise NotSupported(f"{path}: expected {expected} at node {node.name!r}")
    constants = [field.t for node in nodes for field in node.attribute if field.HasField("t")]
    for tensor in chain(*(each.initializer for each in graphs), constants):
        if (damage := _damage(tensor)) is not None:
            raise BadRequest(f"{path}: weight {tensor.name!r}: expected {damage}")
    for kind, values in (("input", graph.input), ("output", graph.output)):
        if maps := [value.name for value in values if _holds_a_map(value.type)]:
            raise NotSupported(f"{path}: {kind} {maps[0]!r}: expected a tensor, found a map, as of ZipMap")
        counts = Counter(value.name for value in values)
        if repeated := [name for name, count in counts.items() if count > 1]:
            raise BadRequest(f"{path}: expected each {kind} once, found {repeated[0]!r} twice")
    missing = {tensor.name for tensor in graph.initializer} - {value.name for value in graph.input}
    if missing and proto.ir_version < LEAST_IR_VERSION:
        expected = "expected every weight among the inputs"
        raise BadRequest(f"{path}: IR version {proto.ir_version}: {expected}, found {min(missing)!r} apart")


def _bodies(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.GraphProto]:
    """The graphs in the nodes' attributes, such as branches, and the graphs in these."""
    for node in nodes:
        for field in node.attribute:
            for body in (*field.graphs, *([field.g] if field.HasField("g") else [])):
                yield body
                yield from _bodies(body.node)


def _ends_onnx_runtime(node: onnx.NodeProto) -> str | None:
    """What was expected, and what is found, at a node at which ONNX Runtime would end the process; else None."""
    if node.op_type in UNNAMED_INPUT and [*node.input[2:]] == [""]:
        part = UNNAMED_INPUT[node.op_type]
        return f"{part}, or two inputs, of {node.op_type}, found {part} without a name"
    if node.op_type in NAMED_OUTPUTS and "" in node.output:
        return f"names for all outputs of {node.op_type}, found one without a name"
    return None


def _holds_a_map(kind: onnx.TypeProto) -> bool:
    while kind.HasField("sequence_type"):
        kind = kind.sequence_type.elem_type
    return bool(kind.HasField("map_type"))


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
