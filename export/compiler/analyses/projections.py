"""Follows queries, keys or values of an attention back to the tokens and the weight that they are computed from.

In: a value of a graph with shapes. Out: its `Channels`: tokens, weight, and which column of it each element is; Refused
if other operators than scales, biases and moves of elements stand between.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from export.compiler.analyses.affine import arithmetic
from export.compiler.analyses.empty_axes import may_be_empty
from export.compiler.analyses.linear_layer_changes import matrix
from export.compiler.errors import Refused
from export.compiler.graph.attributes import given, permutation
from export.compiler.graph.constants import Array
from export.compiler.graph.def_use import made_by
from export.compiler.graph.node_builder import Nodes
from export.compiler.graph.symbolic_shapes import Dim, Shapes, groups, product, same, times
from export.compiler.operators.table import RESHAPES, view_of
from export.compiler.operators.view import Run, View


@dataclass(frozen=True)
class Channels:
    """value = scale * (tokens @ weight)[..., columns] + shift.

    tokens: (B, N, D), or with several axes of the batch, such as images and prompts. weight: (D, M), float64. columns
    (int64), scale, shift (float64): arrays of the value's rank, of size 1 along batch and tokens; along an axis that
    joins batch and heads they have the size of the heads. token_axis, batch_axis: of the value. path: the nodes from
    the tokens to the value. turned: the tokens are (N, B, D). apart: the value has several axes of the batch, too.
    """

    tokens: ir.Value
    weight: Array
    columns: Array
    scale: Array
    shift: Array
    token_axis: int
    batch_axis: int
    path: tuple[ir.Node, ...]
    turned: bool = False
    apart: bool = False

    def arrange(self, columns: Array, scale: Array, shift: Array, token_axis: int, batch_axis: int) -> Channels:
        return replace(self, columns=columns, scale=scale, shift=shift, token_axis=token_axis, batch_axis=batch_axis)

    def through(self, node: ir.Node) -> Channels:
        return replace(self, path=(*self.path, node))

    def rows(self, shapes: Shapes) -> tuple[Dim, Dim]:
        """B and N; several axes of the batch count as one."""
        *batch, length, _ = shapes.dims(self.tokens)
        return (length, batch[0]) if self.turned else (product(batch), length)

    def three_axes(self, nodes: Nodes) -> ir.Value:
        """The tokens as (B, N, D), by new nodes."""
        dims = self.tokens.shape or ir.Shape([])
        if len(dims) == 3:
            return nodes.transpose(self.tokens, [1, 0, 2]) if self.turned else self.tokens
        length = dims[-2] if isinstance(dims[-2], int) else nodes.sizes(self.tokens, [len(dims) - 2])
        return nodes.reshape(self.tokens, [-1, length, len(self.weight)])


def trace(shapes: Shapes, value: ir.Value, tokens_first: bool = False) -> Channels:
    """The channels of a value. `tokens_first`: the weight is multiplied by (tokens, batch, features).

    Raises Refused for a value of another origin.
    """
    node = value.producer()
    if node is None or node.domain:
        raise Refused(value.name or "", "graph input", "expected keys and values made by a MatMul with a weight")
    operator = node.op_type
    if operator == "MatMul":
        return _matmul(shapes, node, tokens_first)
    if operator in ("Add", "Mul", "Div", "Sub"):
        return _affine(shapes, node, tokens_first).through(node)
    view = view_of(shapes, node, value.index() or 0)
    if view is not None:
        before = trace(shapes, given(node, 0), tokens_first)
        if operator in RESHAPES:
            return _reshape(shapes, before, view, value).through(node)
        return _moved(before, view, value).through(node)
    raise Refused.of(value, "no operator that only moves, scales or shifts channels")


def _matmul(shapes: Shapes, node: ir.Node, tokens_first: bool) -> Channels:
    tokens, weight = given(node, 0), matrix(node)
    rank = shapes.rank(tokens)
    if weight is None or rank < 3 or (tokens_first and rank > 3):
        raise Refused.at(node, "expected tokens (batch, tokens, features) by a weight")
    if rank > 3 and may_be_empty(shapes, shapes.dims(tokens)[-2]):  # a Reshape that joins the batch fails then
        raise Refused.at(node, "expected at least one token")
    columns = np.arange(weight.shape[1], dtype=np.int64).reshape(*(1,) * (rank - 1), -1)
    ones = np.ones(columns.shape)
    channels = Channels(tokens, weight, columns, ones, 0 * ones, rank - 2, 0, (node,), apart=rank > 3)
    if not tokens_first:
        return channels
    channels = replace(channels, token_axis=0, batch_axis=1)
    transpose = made_by(tokens, "Transpose")
    if transpose is None or permutation(transpose, 3) != [1, 0, 2]:
        return replace(channels, turned=True)
    return replace(channels, tokens=given(transpose, 0))


def _affine(shapes: Shapes, node: ir.Node, tokens_first: bool) -> Channels:
    operands = arithmetic(shapes, node)
    if operands is None:
        raise Refused.at(node, "expected one constant operand, and not the first of Div")
    operand, factor, term = operands
    before = trace(shapes, operand, tokens_first)
    if before.columns.ndim != factor.ndim:
        raise Refused.at(node, "expected a constant with no more axes than the value")
    if factor.shape[before.token_axis] != 1 or factor.shape[before.batch_axis] != 1:
        raise Refused.at(node, "expected a constant alike for all tokens")
    shape = np.broadcast_shapes(before.columns.shape, factor.shape)
    if shape != before.columns.shape:
        raise Refused.at(node, "expected a constant that does not widen the value")
    scale, shift = before.scale * factor, before.shift * factor + term
    return replace(before, scale=np.broadcast_to(scale, shape), shift=np.broadcast_to(shift, shape))


def _reshape(shapes: Shapes, before: Channels, view: View, value: ir.Value) -> Channels:
    """Follows a Reshape; batch and heads may share an axis, whose size must then be batch * heads.

    Raises Refused if it joins tokens, batch or another free dimension with other axes.
    """
    if before.apart:  # a Reshape takes the elements of (B, P, N, M) for those of (B P, N, M)
        return _reshape(shapes, *_with_one_batch_axis(shapes, before, view, value), value)
    old, new = view.before, view.after
    token_axis = batch_axis = -1
    batch, _ = before.rows(shapes)
    sizes = [size if isinstance(size, int) else -1 for size in new]
    for run in view.runs:
        left, right = [*run.source], [*run.made]
        wide_left = [axis for axis in left if not same(old[axis], 1)]
        wide_right = [axis for axis in right if not same(new[axis], 1)]
        if before.token_axis in left:
            if same(old[before.token_axis], 1):  # one query
                wide_left, wide_right = left, right
            if wide_left != [before.token_axis] or len(wide_right) != 1 or before.batch_axis in left:
                raise _joins(value, "tokens", old, new)
            token_axis = wide_right[0]
            sizes[token_axis] = 1
        elif before.batch_axis in left:
            if not right or (wide_left and wide_left[0] != before.batch_axis and not same(batch, 1)):
                raise _joins(value, "batch", old, new)
            batch_axis = next((axis for axis in right if same(new[axis], batch)), (wide_right or right)[0])
            sizes[batch_axis] = times(new[batch_axis], batch) or -1
    if token_axis < 0 or batch_axis < 0 or min(sizes) < 1 or np.prod(sizes) != before.columns.size:
        raise _joins(value, "free dimensions", old, new)
    columns, scale, shift = (array.reshape(sizes) for array in (before.columns, before.scale, before.shift))
    return before.arrange(columns, scale, shift, token_axis, batch_axis)


def _with_one_batch_axis(shapes: Shapes, before: Channels, view: View, value: ir.Value) -> tuple[Channels, View]:
    """Channels and View of (B P, N, M) in place of (B, P, N, M)."""
    old = (*before.rows(shapes), before.columns.shape[-1])
    runs = groups(shapes, old, view.after)
    if runs is None:
        raise _joins(value, "batch", view.before, view.after)
    columns, scale, shift = (array.reshape(1, 1, -1) for array in (before.columns, before.scale, before.shift))
    joined = replace(before, columns=columns, scale=scale, shift=shift, token_axis=1, batch_axis=0, apart=False)
    return joined, replace(view, before=old, runs=tuple(Run(tuple(left), tuple(right)) for left, right in runs))


def _joins(value: ir.Value, what: str, old: Sequence[Dim], new: Sequence[Dim]) -> Refused:
    words = " -> ".join("(" + ", ".join(map(str, dims)) + ")" for dims in (old, new))
    return Refused(value.name or "", "Reshape", f"joins the {what} with others: {words}")


def _moved(before: Channels, view: View, value: ir.Value) -> Channels:
    """Follows a Transpose, Split, Slice, Gather, Expand or another view; raises Refused if it selects tokens or images.

    An Expand repeats the keys and values that heads share.
    """
    token_axis, batch_axis = view.place(before.token_axis), view.place(before.batch_axis)
    if before.apart:
        raise Refused.of(value, "moves images among tokens or channels")
    if token_axis is None or batch_axis is None:
        raise Refused.of(value, "selects tokens or images, not channels")
    columns, scale, shift = map(view.forward, (before.columns, before.scale, before.shift))
    sizes = [*columns.shape]
    for axis, size in enumerate(view.after):
        if axis not in (token_axis, batch_axis) and isinstance(size, int):
            sizes[axis] = size
    columns, scale, shift = (np.broadcast_to(array, sizes) for array in (columns, scale, shift))
    return before.arrange(columns, scale, shift, token_axis, batch_axis)
