"""Follows a value back to the tokens that a linear layer computed it from.

In: keys or values of an attention. Out: `Channels`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from export.compiler.errors import Refused
from export.compiler.graph.attributes import attribute_int, permutation
from export.compiler.graph.constants import constant, is_constant
from export.compiler.graph.shapes import Dim, Shapes, groups, same
from export.compiler.operators.boxes import WHOLE
from export.compiler.operators.moves import demand_of
from export.compiler.operators.view import RESHAPES

Array = NDArray[Any]


@dataclass(frozen=True)
class Channels:
    """value = scale * (x @ weight)[..., columns] + shift.

    tokens: x (B, N, D). weight: (D, M). columns, scale, shift: the value's axes, with size 1 for batch and tokens; an
    axis that joins batch and heads has the size of the heads. path: the nodes between.
    """

    tokens: ir.Value
    weight: Array
    columns: Array
    scale: Array
    shift: Array
    token_axis: int
    batch_axis: int
    path: tuple[ir.Node, ...]

    def arrange(self, columns: Array, scale: Array, shift: Array, token_axis: int, batch_axis: int) -> Channels:
        return replace(self, columns=columns, scale=scale, shift=shift, token_axis=token_axis, batch_axis=batch_axis)

    def through(self, node: ir.Node) -> Channels:
        return replace(self, path=(*self.path, node))


def trace(shapes: Shapes, value: ir.Value) -> Channels:
    """Raises Refused."""
    node = value.producer()
    if node is None or node.domain:
        raise Refused(value.name or "", "graph input", "expected keys and values made by a MatMul with a weight")
    operator = node.op_type
    if operator == "MatMul":
        return _matmul(shapes, node)
    if operator in ("Add", "Mul", "Div", "Sub"):
        return _affine(shapes, node).through(node)
    source = node.inputs[0]
    if source is None:
        raise Refused(value.name or "", operator, "expected an input, found none")
    if operator == "Transpose":
        before = trace(shapes, source)
        order = permutation(node, before.columns.ndim)
        columns, scale, shift = (array.transpose(order) for array in (before.columns, before.scale, before.shift))
        places = order.index(before.token_axis), order.index(before.batch_axis)
        return before.arrange(columns, scale, shift, *places).through(node)
    if operator in RESHAPES:
        return _reshape(shapes, trace(shapes, source), source, value).through(node)
    if operator in ("Gather", "Slice", "Split"):
        return _select(shapes, node, value).through(node)
    raise Refused(value.name or "", operator, "no operator that only moves, scales or shifts channels")


def _matmul(shapes: Shapes, node: ir.Node) -> Channels:
    tokens, weight = node.inputs[0], constant(node.inputs[1])
    if tokens is None or weight is None or weight.ndim != 2 or shapes.rank(tokens) != 3:
        raise Refused(node.outputs[0].name or "", "MatMul", "expected tokens (batch, tokens, features) by a weight")
    columns = np.arange(weight.shape[1], dtype=np.int64).reshape(1, 1, -1)
    ones = np.ones(columns.shape)
    return Channels(tokens, weight.astype(np.float64), columns, ones, 0 * ones, 1, 0, (node,))


def _affine(shapes: Shapes, node: ir.Node) -> Channels:
    name, operator = node.outputs[0].name or "", node.op_type
    position = next((k for k, given in enumerate(node.inputs) if is_constant(given)), None)
    array = constant(node.inputs[position]) if position is not None else None
    other = node.inputs[1 - position] if position is not None else None
    if array is None or other is None or (operator in ("Div", "Sub") and position == 0):
        raise Refused(name, operator, "expected one constant operand, and not the first of Div or Sub")
    before = trace(shapes, other)
    rank = before.columns.ndim
    if array.ndim > rank or shapes.rank(node.outputs[0]) != rank:
        raise Refused(name, operator, "expected a constant with no more axes than the value")
    factor = array.astype(np.float64).reshape((1,) * (rank - array.ndim) + array.shape)
    if factor.shape[before.token_axis] != 1 or factor.shape[before.batch_axis] != 1:
        raise Refused(name, operator, "expected a constant alike for all tokens")
    scale, shift = before.scale, before.shift
    match operator:
        case "Add":
            shift = shift + factor
        case "Sub":
            shift = shift - factor
        case "Mul":
            scale, shift = scale * factor, shift * factor
        case _:
            scale, shift = scale / factor, shift / factor
    shape = np.broadcast_shapes(before.columns.shape, scale.shape, shift.shape)
    if shape != before.columns.shape:
        raise Refused(name, operator, "expected a constant that does not widen the value")
    return replace(before, scale=np.broadcast_to(scale, shape), shift=np.broadcast_to(shift, shape))


def _reshape(shapes: Shapes, before: Channels, source: ir.Value, value: ir.Value) -> Channels:
    old, new = shapes.dims(source), shapes.dims(value)
    token_axis = batch_axis = -1
    batch = shapes.dims(before.tokens)[0]
    sizes: list[int] = [0] * len(new)
    for left, right in groups(shapes, old, new) or []:
        wide_left = [axis for axis in left if not same(old[axis], 1)]
        wide_right = [axis for axis in right if not same(new[axis], 1)]
        if before.token_axis in left:
            if same(old[before.token_axis], 1):  # one query
                wide_left, wide_right = left, right
            if wide_left != [before.token_axis] or len(wide_right) != 1 or before.batch_axis in left:
                raise _joins(value, "tokens", old, new)
            token_axis = wide_right[0]
            for axis in right:
                sizes[axis] = 1
        elif before.batch_axis in left:
            if not right or (wide_left and wide_left[0] != before.batch_axis and not same(batch, 1)):
                raise _joins(value, "batch", old, new)
            batch_axis = next((axis for axis in right if same(new[axis], batch)), (wide_right or right)[0])
            for axis in right:
                size = quotient(new[axis], batch) if axis == batch_axis else new[axis]
                sizes[axis] = size if isinstance(size, int) else -1
        else:
            for axis in right:
                size = new[axis]
                sizes[axis] = size if isinstance(size, int) else -1
    if token_axis < 0 or batch_axis < 0 or min(sizes) < 1 or np.prod(sizes) != before.columns.size:
        raise _joins(value, "free dimensions", old, new)
    columns, scale, shift = (array.reshape(sizes) for array in (before.columns, before.scale, before.shift))
    return before.arrange(columns, scale, shift, token_axis, batch_axis)


def quotient(dim: Dim, divisor: Dim) -> int | None:
    """None unless the quotient is the same integer for every size."""
    if isinstance(divisor, int):
        return dim // divisor if isinstance(dim, int) and dim % divisor == 0 else None
    if isinstance(dim, int):
        return None
    ratio = (dim / divisor).simplify().evaluate({})
    return ratio if isinstance(ratio, int) else None


def _joins(value: ir.Value, what: str, old: Sequence[Dim], new: Sequence[Dim]) -> Refused:
    words = " -> ".join("(" + ", ".join(map(str, dims)) + ")" for dims in (old, new))
    return Refused(value.name or "", "Reshape", f"joins the {what} with others: {words}")


def _select(shapes: Shapes, node: ir.Node, value: ir.Value) -> Channels:
    source, name = node.inputs[0], value.name or ""
    if source is None:
        raise Refused(name, node.op_type, "expected an input, found none")
    before = trace(shapes, source)
    chosen = dict(demand_of(shapes, node, value.index() or 0, WHOLE).inputs.get(0, WHOLE))
    scalar = node.op_type == "Gather" and shapes.rank(value) < shapes.rank(source)
    if not scalar and shapes.rank(value) != shapes.rank(source):
        raise Refused(name, node.op_type, "expected one index or a vector of them")
    if {before.token_axis, before.batch_axis} & chosen.keys():
        raise Refused(name, node.op_type, "selects tokens or images, not channels")
    arrays = [before.columns, before.scale, before.shift]
    for axis, indices in chosen.items():
        arrays = [np.take(array, indices, axis=axis) for array in arrays]
    token_axis, batch_axis = before.token_axis, before.batch_axis
    if scalar:
        axis = attribute_int(node, "axis", 0) % shapes.rank(source)
        if axis in (token_axis, batch_axis) or arrays[0].shape[axis] != 1:
            raise Refused(name, "Gather", "expected one known index of an axis of channels")
        arrays = [np.squeeze(array, axis) for array in arrays]
        token_axis, batch_axis = token_axis - (token_axis > axis), batch_axis - (batch_axis > axis)
    own = [size for axis, size in enumerate(shapes.dims(value)) if axis not in (token_axis, batch_axis)]
    if own != [size for axis, size in enumerate(arrays[0].shape) if axis not in (token_axis, batch_axis)]:
        raise Refused(name, node.op_type, "selects what is not known before the graph runs")
    columns, scale, shift = arrays
    return before.arrange(columns, scale, shift, token_axis, batch_axis)
