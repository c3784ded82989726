"""Rules of ONNX Runtime's own operators (com.microsoft) and of integer arithmetic.

In and out: see `demand_rules`.
"""

from __future__ import annotations

import onnx_ir as ir

from export.compiler.graph.attributes import attribute_int, given, optional
from export.compiler.graph.def_use import is_read
from export.compiler.graph.shapes import Shapes, agree
from export.compiler.operators.boxes import WHOLE, Box, box
from export.compiler.operators.demand_rules import (
    Demand,
    Rule,
    broadcast,
    canonical,
    everything,
    matmul,
    product,
    rotated,
    row_by_row,
)

DOMAIN = "com.microsoft"


def biased(shapes: Shapes, node: ir.Node, index: int, demand: Box) -> Demand:
    """Of each element, beside a bias along the last axis."""
    last = shapes.rank(node.outputs[index]) - 1
    return row_by_row(node, demand, () if optional(node, 1) is None else {last})


def rows(shapes: Shapes, node: ir.Node, index: int, demand: Box) -> Demand:
    """A product whose second factor is stored in blocks."""
    return row_by_row(node, demand, {shapes.rank(node.outputs[index]) - 1})


def skip_norm(shapes: Shapes, node: ir.Node, index: int, demand: Box) -> Demand:
    """The norm of input + skip, and that sum."""
    out = node.outputs[index]
    if index not in (0, 3):
        return everything(node)
    plain = row_by_row(node, demand, {shapes.rank(out) - 1})
    read = {k: broadcast(shapes, out, given(node, k), plain.produced) for k in (0, 1)}
    return Demand(plain.produced, {**plain.inputs, **read})


def fused_matmul(shapes: Shapes, node: ir.Node, index: int, demand: Box) -> Demand:
    left, right = given(node, 0), given(node, 1)
    turned = [attribute_int(node, name, 0) for name in ("transA", "transB", "transBatchA", "transBatchB")]
    if min(shapes.rank(left), shapes.rank(right)) < 2 or any(turned[2:]):
        return everything(node)
    plain = matmul(shapes, node, index, demand)
    read = {}
    for position, value, turn in ((0, left, turned[0]), (1, right, turned[1])):
        own, axes = dict(plain.inputs[position]), shapes.rank(value)
        if turn:
            outer = {axis: chosen for axis, chosen in own.items() if axis < axes - 2}
            inner = {2 * axes - 3 - axis: chosen for axis, chosen in own.items() if axis >= axes - 2}
            own = {**outer, **inner}
        read[position] = canonical(shapes, value, box(own))
    return Demand(demand, read)


def rotary(shapes: Shapes, node: ir.Node, index: int, demand: Box) -> Demand:
    """Its rule takes the place of every row from its own input."""
    if attribute_int(node, "is_packed_batching", 0):
        return everything(node)
    return rotated(shapes, node, demand, (1,) if shapes.rank(given(node, 1)) == 2 else ())


def multi_head(shapes: Shapes, node: ir.Node, index: int, demand: Box) -> Demand:
    """A row of the output reads its own query and its own row of the bias."""
    query, key, _, mask, bias = *(given(node, position) for position in range(3)), optional(node, 4), optional(node, 5)
    more = any(node.inputs[6:]) or any(map(is_read, node.outputs[1:]))
    packed = shapes.rank(query) != 3 or shapes.rank(key) != 3
    if index or more or packed or attribute_int(node, "unidirectional", 0):
        return everything(node)
    kept = box({axis: chosen for axis, chosen in demand if axis == 1})
    if kept == WHOLE or (mask is not None and shapes.rank(mask) != 2):
        return everything(node)
    read = {**everything(node).inputs, 0: kept}
    if bias is not None:
        if shapes.rank(bias) != 4 or not agree(shapes.dims(query)[1], shapes.dims(bias)[2]):
            return everything(node)
        read[5] = box({2: dict(kept)[1]})
    return Demand(kept, read)


def gather_blocks(shapes: Shapes, node: ir.Node, index: int, demand: Box) -> Demand:
    if attribute_int(node, "gather_axis", 0):
        return everything(node)
    kept = box({axis: chosen for axis, chosen in demand if axis < shapes.rank(given(node, 1))})
    return Demand(kept, {**everything(node).inputs, 1: kept})


def scaled(shapes: Shapes, node: ir.Node, index: int, demand: Box) -> Demand:
    """QuantizeLinear and DequantizeLinear: a scale of each element's own, or along one axis."""
    value, scale = given(node, 0), given(node, 1)
    if shapes.rank(scale) > 1:
        return everything(node)
    axis = attribute_int(node, "axis", 1) % max(shapes.rank(value), 1)
    return row_by_row(node, demand, () if _single(shapes, scale) else {axis})


def quantised_softmax(shapes: Shapes, node: ir.Node, index: int, demand: Box) -> Demand:
    """Sums over all axes from `axis` on, or over it alone: the others are cut."""
    rank = shapes.rank(node.outputs[index])
    return row_by_row(node, demand, range(attribute_int(node, "axis", -1) % rank, rank))


def _single(shapes: Shapes, value: ir.Value | None) -> bool:
    return value is None or all(dim == 1 for dim in shapes.dims(value))


def integer_matmul(factors: tuple[int, int], scales: tuple[int, ...]) -> Rule:
    """Rows of a product of quantised factors: one scale and one zero for all rows of the first, rows for the second."""

    def rule(shapes: Shapes, node: ir.Node, index: int, demand: Box) -> Demand:
        last = shapes.rank(node.outputs[index]) - 1
        kept = box({axis: chosen for axis, chosen in demand if axis < last})
        others = {place: value for place, value in enumerate(node.inputs) if place not in factors and value is not None}
        if not all(_single(shapes, value) for place, value in others.items() if place in scales):
            return everything(node)
        if any(shapes.rank(value) > 1 for value in others.values()):
            return everything(node)
        return product(shapes, node, index, kept, factors)

    return rule


def is_integer(node: ir.Node) -> bool:
    """Whether it computes in integers, or converts to or from them."""
    names = ("QLinear", "QuantizeLinear", "DequantizeLinear", "DynamicQuantize", "MatMulInteger", "ConvInteger")
    return node.op_type.startswith(names)


def without_double(graph: ir.Graph) -> ir.Node | None:
    """The first node for which there is no reference in float64."""
    return next((node for node in graph if node.domain or is_integer(node)), None)
