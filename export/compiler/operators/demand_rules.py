"""Rules of operators that compute: what they must read for a part of an output.

In: a node, one of its outputs and a box of it. Out: `Demand`, whose box contains the wanted box. `table` says
which operator has which rule; `data_movement` has the rules of operators that move elements.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from export.compiler.errors import Refused
from export.compiler.graph.attributes import (
    attribute_int,
    attribute_ints,
    attribute_string,
    axes_of,
    given,
    has_window,
    is_padded,
    mixed_axes,
    optional,
)
from export.compiler.graph.def_use import is_read
from export.compiler.graph.shapes import Shapes, agree, same
from export.compiler.operators.boxes import WHOLE, Box, box


@dataclass(frozen=True)
class Demand:
    """`produced` needs these boxes of the inputs; other inputs are not read."""

    produced: Box
    inputs: Mapping[int, Box]


Rule = Callable[[Shapes, ir.Node, int, Box], Demand]


def everything(node: ir.Node) -> Demand:
    return Demand(WHOLE, {position: WHOLE for position, value in enumerate(node.inputs) if value is not None})


def row_by_row(node: ir.Node, demand: Box, mixed: Container[int], place: int = 0) -> Demand:
    """The operator mixes elements along the axes `mixed` alone. Its other axes are those of the input at `place`."""
    kept = box({axis: chosen for axis, chosen in demand if axis not in mixed})
    return Demand(kept, {**everything(node).inputs, place: kept})


def canonical(shapes: Shapes, value: ir.Value, demand: Box) -> Box:
    """The box as it is always written: indices of a known axis count from its start, and all of them are left out."""
    kept = {}
    for axis, chosen in demand:
        size = shapes.static(value, axis)
        if size is not None:
            chosen = tuple(place if place >= 0 else max(place + size, 0) for place in chosen)
        if len(chosen) != size or chosen != tuple(range(size)):
            kept[axis] = chosen
    return box(kept)


def broadcast(shapes: Shapes, out: ir.Value, value: ir.Value, demand: Box, matrix: int = 0) -> Box:
    """The box of an operand of `out`, without the last `matrix` axes.

    Raises Refused if an axis may or may not be broadcast.
    """
    wide, narrow = shapes.dims(out), shapes.dims(value)
    chosen = {}
    for axis, indices in demand:
        own = axis - (len(wide) - len(narrow))
        if 0 <= own < len(narrow) - matrix and axis < len(wide) - matrix:
            if same(narrow[own], 1):
                continue
            if not agree(wide[axis], narrow[own]):
                raise Refused.of(value, f"axis {own} may be broadcast: {narrow[own]}")
            chosen[own] = indices
    return canonical(shapes, value, box(chosen))


def elementwise(shapes: Shapes, node: ir.Node, index: int, demand: Box) -> Demand:
    return Demand(demand, {**everything(node).inputs, 0: demand})


def broadcasting(shapes: Shapes, node: ir.Node, index: int, demand: Box) -> Demand:
    out = node.outputs[index]
    read = {k: broadcast(shapes, out, value, demand) for k, value in enumerate(node.inputs) if value is not None}
    return Demand(demand, read)


def matmul(shapes: Shapes, node: ir.Node, index: int, demand: Box) -> Demand:
    return product(shapes, node, index, demand, (0, 1))


def product(shapes: Shapes, node: ir.Node, index: int, demand: Box, factors: tuple[int, int]) -> Demand:
    """Of the inputs `factors`; the others are read whole."""
    left, right = (given(node, position) for position in factors)
    if min(shapes.rank(left), shapes.rank(right)) < 2:
        return everything(node)
    out, chosen = node.outputs[index], dict(demand)
    rank = shapes.rank(out)
    rows = dict(broadcast(shapes, out, left, demand, matrix=2))
    columns = dict(broadcast(shapes, out, right, demand, matrix=2))
    if rank - 2 in chosen:
        rows[shapes.rank(left) - 2] = chosen[rank - 2]
    if rank - 1 in chosen:
        columns[shapes.rank(right) - 1] = chosen[rank - 1]
    boxes = (canonical(shapes, left, box(rows)), canonical(shapes, right, box(columns)))
    return Demand(demand, {**everything(node).inputs, **dict(zip(factors, boxes, strict=True))})


def gemm(shapes: Shapes, node: ir.Node, index: int, demand: Box) -> Demand:
    read, chosen = dict(everything(node).inputs), dict(demand)
    if 0 in chosen:
        read[0] = box({1 if attribute_int(node, "transA", 0) else 0: chosen[0]})
    if 1 in chosen:
        read[1] = box({0 if attribute_int(node, "transB", 0) else 1: chosen[1]})
    if (bias := optional(node, 2)) is not None:
        read[2] = broadcast(shapes, node.outputs[index], bias, demand)
    return Demand(demand, read)


def conv(shapes: Shapes, node: ir.Node, index: int, demand: Box) -> Demand:
    """Chosen channels read chosen filters. Pixels can be chosen only for 1 x 1 filters."""
    read, chosen = dict(everything(node).inputs), dict(demand)
    kernel = shapes.dims(given(node, 1))[2:]
    strides = attribute_ints(node, "strides") or []
    pointwise = all(same(size, 1) for size in kernel) and not is_padded(node) and set(strides) <= {1}
    produced = {}
    for axis, indices in chosen.items():
        if axis == 1 and attribute_int(node, "group", 1) == 1:
            read[1] = box({0: indices})
            if optional(node, 2) is not None:
                read[2] = box({0: indices})
            produced[axis] = indices
        elif axis == 0 or (axis > 1 and pointwise):
            produced[axis] = indices
    read[0] = box({axis: indices for axis, indices in produced.items() if axis != 1})
    return Demand(box(produced), read)


def softmax(shapes: Shapes, node: ir.Node, index: int, demand: Box) -> Demand:
    return row_by_row(node, demand, mixed_axes(node, shapes.rank(node.outputs[index])))


def along_axis(shapes: Shapes, node: ir.Node, index: int, demand: Box) -> Demand:
    """Of an operator whose axis is the last if it names none."""
    return row_by_row(node, demand, {attribute_int(node, "axis", -1) % shapes.rank(node.outputs[index])})


def layer_norm(shapes: Shapes, node: ir.Node, index: int, demand: Box) -> Demand:
    if index:
        return everything(node)
    rank = shapes.rank(node.outputs[index])
    axis = attribute_int(node, "axis", -1) % rank
    if any(value is not None and shapes.rank(value) > rank - axis for value in node.inputs[1:]):  # differs between rows
        return everything(node)
    return row_by_row(node, demand, range(axis, rank))


def batch_norm(shapes: Shapes, node: ir.Node, index: int, demand: Box) -> Demand:
    return everything(node) if index else row_by_row(node, demand, {1})


def reduce(shapes: Shapes, node: ir.Node, index: int, demand: Box) -> Demand:
    axes = axes_of(node)
    return everything(node) if axes is None else _reduced(shapes, node, demand, axes)


def best(shapes: Shapes, node: ir.Node, index: int, demand: Box) -> Demand:
    return _reduced(shapes, node, demand, [attribute_int(node, "axis", 0)])


def _reduced(shapes: Shapes, node: ir.Node, demand: Box, axes: Sequence[int]) -> Demand:
    rank = shapes.rank(given(node, 0))
    reduced = {axis % rank for axis in axes}
    left = [axis for axis in range(rank) if axis not in reduced]
    source = {axis: axis for axis in left} if attribute_int(node, "keepdims", 1) else dict(enumerate(left))
    kept = {axis: indices for axis, indices in demand if axis in source}
    read = box({source[axis]: indices for axis, indices in kept.items()})
    return Demand(box(kept), {**everything(node).inputs, 0: read})


def einsum_terms(shapes: Shapes, node: ir.Node) -> tuple[list[str], str] | None:
    """The letters of the operands' axes, and of the output's; None where an axis is repeated, implied or broadcast."""
    left, arrow, right = attribute_string(node, "equation", "").replace(" ", "").partition("->")
    terms = left.split(",")
    if not arrow or "." in left or any(len(set(term)) < len(term) for term in (*terms, right)):
        return None
    operands = [shapes.dims(value) for value in node.inputs if value is not None]
    sized = {
        (letter, same(dim, 1))
        for term, dims in zip(terms, operands, strict=True)
        for letter, dim in zip(term, dims, strict=True)
    }
    broadcast = len(sized) > len({letter for letter, _ in sized})
    return None if broadcast else (terms, right)


def einsum(shapes: Shapes, node: ir.Node, index: int, demand: Box) -> Demand:
    parsed = einsum_terms(shapes, node)
    if parsed is None:
        return everything(node)
    terms, right = parsed
    read = {
        position: box({term.index(right[axis]): indices for axis, indices in demand if right[axis] in term})
        for position, term in enumerate(terms)
    }
    return Demand(demand, read)


def attention(shapes: Shapes, node: ir.Node, index: int, demand: Box) -> Demand:
    """A row of the output reads its own query and its own row of the mask. Of a causal one only the last row is cut."""
    out, mask = node.outputs[0], optional(node, 3)
    cached = any(value is not None for value in node.inputs[4:])
    if index or cached or any(map(is_read, node.outputs[1:])) or has_window(node):
        return everything(node)
    rows = shapes.rank(out) - 2
    kept = box({axis: indices for axis, indices in demand if axis == rows})
    if kept == WHOLE or (attribute_int(node, "is_causal", 0) and not sees_every_key(shapes, node, kept)):
        return everything(node)
    read = {**everything(node).inputs, 0: kept}
    if mask is not None:
        axis = shapes.rank(mask) - 2
        if axis >= 0 and not same(shapes.dims(mask)[axis], 1):
            if not same(shapes.dims(mask)[axis], shapes.dims(given(node, 0))[rows]):
                return everything(node)
            read[3] = box({axis: dict(kept)[rows]})
    return Demand(kept, read)


def sees_every_key(shapes: Shapes, node: ir.Node, rows: Box) -> bool:
    """Whether these rows of queries are the last alone, of as many queries as keys: nothing comes after them."""
    query, key = given(node, 0), given(node, 1)
    own, last = shapes.rank(query) - 2, box({shapes.rank(query) - 2: (-1,)})
    return rows == canonical(shapes, query, last) and same(shapes.dims(query)[own], shapes.dims(key)[own])


def rotary(shapes: Shapes, node: ir.Node, index: int, demand: Box) -> Demand:
    """Without numbers of places each row has its own cosines and sines."""
    return rotated(shapes, node, demand, (1, 2) if optional(node, 3) is None else (3,))


def rotated(shapes: Shapes, node: ir.Node, demand: Box, places: Sequence[int]) -> Demand:
    """A row, (batch, tokens, features) or (batch, heads, tokens, features), reads its own row of the inputs `places`,
    (batch, tokens, ...); without them tokens are counted.
    """
    out = given(node, 0)
    row = shapes.rank(out) - 2
    kept = {axis: chosen for axis, chosen in demand if axis == 0 or (axis == row and places)}
    read = {**everything(node).inputs, 0: box(kept)}
    for place in places:
        value, own = given(node, place), {}
        for axis, chosen in kept.items():
            at = min(axis, 1)
            if agree(shapes.dims(out)[axis], shapes.dims(value)[at]):
                own[at] = chosen
            elif not same(shapes.dims(value)[at], 1):
                return everything(node)
        read[place] = canonical(shapes, value, box(own))
    return Demand(box(kept), read)
