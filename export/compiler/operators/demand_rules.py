"""Rules that say which part of its inputs an operator needs to compute a part of an output.

In: a node, the index of an output and a box of this output. Out: `Demand`. A rule may compute more than the box that is
wanted, never less. `table` says which operator has which rule. Here are the rules of operators that compute; those of
operators that only move elements are in `data_movement`.
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
    einsum_letters,
    given,
    has_window,
    is_padded,
    mixed_axes,
    optional,
)
from export.compiler.graph.def_use import is_read
from export.compiler.graph.symbolic_shapes import Shapes, agree, same
from export.compiler.operators.boxes import WHOLE, Box, box


@dataclass(frozen=True)
class Demand:
    """To compute the box `produced` of its output the node needs these boxes of its inputs, by position, no others."""

    produced: Box
    inputs: Mapping[int, Box]


Rule = Callable[[Shapes, ir.Node, int, Box], Demand]


def everything(node: ir.Node) -> Demand:
    """All outputs need all inputs: the answer that is right for every operator."""
    return Demand(WHOLE, {position: WHOLE for position, value in enumerate(node.inputs) if value is not None})


def partly(node: ir.Node, produced: Box, inputs: Mapping[int, Box]) -> Demand:
    """The box `produced` needs these boxes of some inputs, and the other inputs entirely."""
    return Demand(produced, {**everything(node).inputs, **inputs})


def row_by_row(node: ir.Node, demand: Box, mixed: Container[int]) -> Demand:
    """The rule of an operator that mixes elements only along the axes `mixed`, which it needs entirely.

    The other axes are also those of the first input; other inputs are read entirely.
    """
    rows = box({axis: indices for axis, indices in demand if axis not in mixed})
    return partly(node, rows, {0: rows})


def canonical(shapes: Shapes, value: ir.Value, demand: Box) -> Box:
    """The box in the form in which equal boxes are equal tuples.

    Indices of an axis of known size count from its start. An axis of which all rows are wanted is left out.
    """
    rows = {}
    for axis, indices in demand:
        size = shapes.static(value, axis)
        if size is not None:
            indices = tuple(index if index >= 0 else max(index + size, 0) for index in indices)
        if len(indices) != size or indices != tuple(range(size)):
            rows[axis] = indices
    return box(rows)


def broadcast(shapes: Shapes, out: ir.Value, value: ir.Value, demand: Box, matrix: int = 0) -> Box:
    """The box of the operand `value` that is broadcast to a box of `out`. The last `matrix` axes are left out.

    Raises Refused if it is unknown whether an axis is broadcast.
    """
    out_dims, dims = shapes.dims(out), shapes.dims(value)
    rows = {}
    for out_axis, indices in demand:
        axis = out_axis - (len(out_dims) - len(dims))
        if 0 <= axis < len(dims) - matrix and out_axis < len(out_dims) - matrix:
            if same(dims[axis], 1):
                continue
            if not agree(out_dims[out_axis], dims[axis]):
                raise Refused.of(value, f"axis {axis} may be broadcast: {dims[axis]}")
            rows[axis] = indices
    return canonical(shapes, value, box(rows))


def elementwise(shapes: Shapes, node: ir.Node, index: int, demand: Box) -> Demand:
    return partly(node, demand, {0: demand})


def broadcasting(shapes: Shapes, node: ir.Node, index: int, demand: Box) -> Demand:
    out = node.outputs[index]
    read = {k: broadcast(shapes, out, value, demand) for k, value in enumerate(node.inputs) if value is not None}
    return Demand(demand, read)


def matmul(shapes: Shapes, node: ir.Node, index: int, demand: Box) -> Demand:
    return product(shapes, node, index, demand, (0, 1))


def product(shapes: Shapes, node: ir.Node, index: int, demand: Box, factors: tuple[int, int]) -> Demand:
    """A product of the inputs at the positions `factors`. Other inputs, such as scales, are read entirely."""
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
    return partly(node, demand, dict(zip(factors, boxes, strict=True)))


def gemm(shapes: Shapes, node: ir.Node, index: int, demand: Box) -> Demand:
    read, chosen = dict[int, Box](), dict(demand)
    if 0 in chosen:
        read[0] = box({1 if attribute_int(node, "transA", 0) else 0: chosen[0]})
    if 1 in chosen:
        read[1] = box({0 if attribute_int(node, "transB", 0) else 1: chosen[1]})
    if (bias := optional(node, 2)) is not None:
        read[2] = broadcast(shapes, node.outputs[index], bias, demand)
    return partly(node, demand, read)


def conv(shapes: Shapes, node: ir.Node, index: int, demand: Box) -> Demand:
    """A channel of the output needs only its filter. A pixel needs only the same pixel if filters are 1 x 1."""
    read = dict[int, Box]()
    kernel = shapes.dims(given(node, 1))[2:]
    strides = attribute_ints(node, "strides") or []
    pointwise = all(same(size, 1) for size in kernel) and not is_padded(node) and set(strides) <= {1}
    produced = {}
    for axis, indices in demand:
        if axis == 1 and attribute_int(node, "group", 1) == 1:
            read[1] = box({0: indices})
            if optional(node, 2) is not None:
                read[2] = box({0: indices})
            produced[axis] = indices
        elif axis == 0 or (axis > 1 and pointwise):
            produced[axis] = indices
    read[0] = box({axis: indices for axis, indices in produced.items() if axis != 1})
    return partly(node, box(produced), read)


def softmax(shapes: Shapes, node: ir.Node, index: int, demand: Box) -> Demand:
    return row_by_row(node, demand, mixed_axes(node, shapes.rank(node.outputs[index])))


def along_axis(shapes: Shapes, node: ir.Node, index: int, demand: Box) -> Demand:
    """The rule of an operator that mixes along its attribute `axis`, by default the last."""
    return row_by_row(node, demand, {attribute_int(node, "axis", -1) % shapes.rank(node.outputs[index])})


def layer_norm(shapes: Shapes, node: ir.Node, index: int, demand: Box) -> Demand:
    if index:
        return everything(node)
    rank = shapes.rank(node.outputs[index])
    axis = attribute_int(node, "axis", -1) % rank
    if any(value is not None and shapes.rank(value) > rank - axis for value in node.inputs[1:]):
        return everything(node)  # the rows have different scales
    return row_by_row(node, demand, range(axis, rank))


def batch_norm(shapes: Shapes, node: ir.Node, index: int, demand: Box) -> Demand:
    return everything(node) if index else row_by_row(node, demand, {1})


def reduce(shapes: Shapes, node: ir.Node, index: int, demand: Box) -> Demand:
    axes = axes_of(node)
    return everything(node) if axes is None else _reduced(shapes, node, demand, axes)


def arg_best(shapes: Shapes, node: ir.Node, index: int, demand: Box) -> Demand:
    """ArgMax and ArgMin."""
    return _reduced(shapes, node, demand, [attribute_int(node, "axis", 0)])


def global_pool(shapes: Shapes, node: ir.Node, index: int, demand: Box) -> Demand:
    """A pool of all axes but batch and channels: of (batch, tokens, features) a norm's mean, as tf2onnx writes it."""
    return _reduced(shapes, node, demand, range(2, shapes.rank(given(node, 0))))


def _reduced(shapes: Shapes, node: ir.Node, demand: Box, axes: Sequence[int]) -> Demand:
    """The rule of an operator that reduces these axes."""
    rank = shapes.rank(given(node, 0))
    reduced = {axis % rank for axis in axes}
    remaining = [axis for axis in range(rank) if axis not in reduced]
    source = {axis: axis for axis in remaining} if attribute_int(node, "keepdims", 1) else dict(enumerate(remaining))
    produced = {axis: indices for axis, indices in demand if axis in source}
    read = box({source[axis]: indices for axis, indices in produced.items()})
    return partly(node, box(produced), {0: read})


def einsum_terms(shapes: Shapes, node: ir.Node) -> tuple[list[str], str] | None:
    """The letters of each operand's axes and of the output's. None if an axis is repeated, implied or broadcast."""
    operands = [shapes.dims(value) for value in node.inputs if value is not None]
    terms, right = einsum_letters(node, [len(dims) for dims in operands])
    implied = "->" not in attribute_string(node, "equation", "")
    if implied or any(len(set(term)) < len(term) for term in (*terms, right)):
        return None
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
    """A row of the output needs its query, the query's row of the mask, and all keys and values.

    A causal Attention cannot cut queries, because it counts their positions. The last query alone sees all keys.
    """
    out, mask = node.outputs[0], optional(node, 3)
    has_past = any(value is not None for value in node.inputs[4:])
    if index or has_past or any(map(is_read, node.outputs[1:])) or has_window(node):
        return everything(node)
    query_axis = shapes.rank(out) - 2
    queries = box({axis: indices for axis, indices in demand if axis == query_axis})
    if queries == WHOLE or (attribute_int(node, "is_causal", 0) and not sees_every_key(shapes, node, queries)):
        return everything(node)
    read = {0: queries}
    if mask is not None:
        axis = shapes.rank(mask) - 2
        if axis >= 0 and not same(shapes.dims(mask)[axis], 1):
            if not same(shapes.dims(mask)[axis], shapes.dims(given(node, 0))[query_axis]):
                return everything(node)
            read[3] = box({axis: dict(queries)[query_axis]})
    return partly(node, queries, read)


def sees_every_key(shapes: Shapes, node: ir.Node, queries: Box) -> bool:
    """Whether the box holds only the last query, and there are as many queries as keys: no key comes after it."""
    query, key = given(node, 0), given(node, 1)
    axis = shapes.rank(query) - 2
    is_last = queries == canonical(shapes, query, box({axis: (-1,)}))
    return is_last and same(shapes.dims(query)[axis], shapes.dims(key)[axis])


def rotary(shapes: Shapes, node: ir.Node, index: int, demand: Box) -> Demand:
    """RotaryEmbedding. Input 3 holds positions; without it inputs 1 and 2 hold each token's cosines and sines."""
    return rotated(shapes, node, demand, (1, 2) if optional(node, 3) is None else (3,))


def rotated(shapes: Shapes, node: ir.Node, demand: Box, position_inputs: Sequence[int]) -> Demand:
    """The rule of a rotary embedding of (batch, tokens, features) or (batch, heads, tokens, features).

    A token needs its row of the `position_inputs`, each (batch, tokens, ...). Without such inputs the operator counts
    the tokens, and none can be left out.
    """
    out = given(node, 0)
    token_axis = shapes.rank(out) - 2
    rows = {axis: indices for axis, indices in demand if axis == 0 or (axis == token_axis and position_inputs)}
    read = {0: box(rows)}
    for position_input in position_inputs:
        value, value_rows = given(node, position_input), {}
        for axis, indices in rows.items():
            value_axis = min(axis, 1)
            if agree(shapes.dims(out)[axis], shapes.dims(value)[value_axis]):
                value_rows[value_axis] = indices
            elif not same(shapes.dims(value)[value_axis], 1):
                return everything(node)
        read[position_input] = canonical(shapes, value, box(value_rows))
    return partly(node, box(rows), read)
