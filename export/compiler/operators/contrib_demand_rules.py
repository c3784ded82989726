"""Rules of ONNX Runtime's contrib operators (domain com.microsoft) and of quantised arithmetic.

A rule's arguments and result are those of `demand_rules`: a box of an output in, the needed boxes of the inputs out.
"""

from __future__ import annotations

import onnx_ir as ir

from export.compiler.graph.attributes import attribute_int, given, optional
from export.compiler.graph.def_use import is_read
from export.compiler.graph.symbolic_shapes import Shapes, agree
from export.compiler.operators.boxes import WHOLE, Box, box
from export.compiler.operators.demand_rules import (
    Demand,
    Rule,
    broadcast,
    canonical,
    everything,
    matmul,
    partly,
    product,
    rotated,
    row_by_row,
)

DOMAIN = "com.microsoft"


def skip_norm(shapes: Shapes, node: ir.Node, index: int, demand: Box) -> Demand:
    """The normalised sum of input and skip (output 0), and the sum (output 3)."""
    out = node.outputs[index]
    if index not in (0, 3):
        return everything(node)
    by_rows = row_by_row(node, demand, {shapes.rank(out) - 1})
    read = {k: broadcast(shapes, out, given(node, k), by_rows.produced) for k in (0, 1)}
    return partly(node, by_rows.produced, read)


def fused_matmul(shapes: Shapes, node: ir.Node, index: int, demand: Box) -> Demand:
    """A product of matrices, each of which may be transposed."""
    left, right = given(node, 0), given(node, 1)
    transposed = [attribute_int(node, name, 0) for name in ("transA", "transB", "transBatchA", "transBatchB")]
    if min(shapes.rank(left), shapes.rank(right)) < 2 or any(transposed[2:]):
        return everything(node)
    product_demand = matmul(shapes, node, index, demand)
    read = {}
    for position, value in ((0, left), (1, right)):
        rows, rank = dict(product_demand.inputs[position]), shapes.rank(value)
        if transposed[position]:
            batch = {axis: chosen for axis, chosen in rows.items() if axis < rank - 2}
            matrix = {2 * rank - 3 - axis: chosen for axis, chosen in rows.items() if axis >= rank - 2}
            rows = {**batch, **matrix}
        read[position] = canonical(shapes, value, box(rows))
    return Demand(demand, read)


def rotary(shapes: Shapes, node: ir.Node, index: int, demand: Box) -> Demand:
    """Rotated tokens. Position numbers of shape (batch, tokens) say each token's position; others count from the first
    token, so that no token can be left out.
    """
    if attribute_int(node, "is_packed_batching", 0):
        return everything(node)
    return rotated(shapes, node, demand, (1,) if shapes.rank(given(node, 1)) == 2 else ())


def multi_head(shapes: Shapes, node: ir.Node, index: int, demand: Box) -> Demand:
    """Attention: a row of the output reads its query and the query's row of the bias, and all keys and values."""
    query, key, _, mask, bias = *(given(node, position) for position in range(3)), optional(node, 4), optional(node, 5)
    has_past = any(node.inputs[6:]) or any(map(is_read, node.outputs[1:]))
    is_packed = shapes.rank(query) != 3 or shapes.rank(key) != 3
    if index or has_past or is_packed or attribute_int(node, "unidirectional", 0):
        return everything(node)
    queries = box({axis: rows for axis, rows in demand if axis == 1})
    if queries == WHOLE or (mask is not None and shapes.rank(mask) != 2):
        return everything(node)
    read = {0: queries}
    if bias is not None:
        if shapes.rank(bias) != 4 or not agree(shapes.dims(query)[1], shapes.dims(bias)[2]):
            return everything(node)
        read[5] = box({2: dict(queries)[1]})
    return partly(node, queries, read)


def gather_blocks(shapes: Shapes, node: ir.Node, index: int, demand: Box) -> Demand:
    """GatherBlockQuantized: rows of a quantised table. Only the wanted indices are read."""
    if attribute_int(node, "gather_axis", 0):
        return everything(node)
    indices = box({axis: rows for axis, rows in demand if axis < shapes.rank(given(node, 1))})
    return partly(node, indices, {1: indices})


def scaled(shapes: Shapes, node: ir.Node, index: int, demand: Box) -> Demand:
    """QuantizeLinear and DequantizeLinear: a scale for all elements, or for each row of one axis."""
    value, scale = given(node, 0), given(node, 1)
    if shapes.rank(scale) > 1:
        return everything(node)
    axis = attribute_int(node, "axis", 1) % max(shapes.rank(value), 1)
    return row_by_row(node, demand, () if _single(shapes, scale) else {axis})


def quantised_softmax(shapes: Shapes, node: ir.Node, index: int, demand: Box) -> Demand:
    """QLinearSoftmax sums over all axes from `axis` on, or over `axis` alone. The axes before it can be cut."""
    rank = shapes.rank(node.outputs[index])
    return row_by_row(node, demand, range(attribute_int(node, "axis", -1) % rank, rank))


def quantised_concat(shapes: Shapes, node: ir.Node, index: int, demand: Box) -> Demand:
    """QLinearConcat of (part, scale, zero point) from input 2 on. All axes can be cut but the concatenated axis."""
    axis = attribute_int(node, "axis", 0) % shapes.rank(node.outputs[index])
    rows = box({other: chosen for other, chosen in demand if other != axis})
    parts = {k: canonical(shapes, given(node, k), rows) for k in range(2, len(node.inputs), 3)}
    return partly(node, rows, parts)


def _single(shapes: Shapes, value: ir.Value | None) -> bool:
    """Whether the value has a single element, or is no input at all."""
    return value is None or all(dim == 1 for dim in shapes.dims(value))


def integer_matmul(factors: tuple[int, int], scales: tuple[int, ...]) -> Rule:
    """The rule of a product of quantised factors, whose rows can be cut and whose columns cannot.

    factors: the positions of the two factors among the inputs. scales: the positions of scale and zero point of the
    first factor, which must be single numbers, for all its rows.
    """

    def rule(shapes: Shapes, node: ir.Node, index: int, demand: Box) -> Demand:
        last = shapes.rank(node.outputs[index]) - 1
        rows = box({axis: chosen for axis, chosen in demand if axis < last})
        others = {k: value for k, value in enumerate(node.inputs) if k not in factors and value is not None}
        if not all(_single(shapes, value) for k, value in others.items() if k in scales):
            return everything(node)
        if any(shapes.rank(value) > 1 for value in others.values()):
            return everything(node)
        return product(shapes, node, index, rows, factors)

    return rule


def is_integer(node: ir.Node) -> bool:
    """Whether the node computes with quantised numbers, or quantises or dequantises."""
    names = ("QLinear", "QuantizeLinear", "DequantizeLinear", "DynamicQuantize", "MatMulInteger", "ConvInteger")
    return node.op_type.startswith(names)


def node_without_reference(graph: ir.Graph) -> ir.Node | None:
    """The first node for which there is no reference in float64; None if every node has a reference."""
    return next((node for node in graph if node.domain or is_integer(node)), None)
