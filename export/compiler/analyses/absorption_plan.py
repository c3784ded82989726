"""Plans how an attention absorbs the projections of its keys and values, and counts the cost before and after.

In: a graph with shapes and the parts of an attention. Out: an `AbsorptionPlan`, or Refused. It pays for few queries.
Multiply-accumulates for N tokens of D features, Q queries and H heads of E features:

    original:   (D + Q) N H 2E  + query projection + output projection
    absorbed:   2 Q N H D       + both projections, each in the cheaper of two forms:
                one more product per head, Q H E D, or a single weight of H D columns or rows

Keys that are turned by their position or normalised stay, and so do keys of scores of another form; the values alone
are then absorbed. Keys may be made from other tokens than values, as where positions are added for the keys alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from export.compiler.analyses.batch_invariant import batch_invariant
from export.compiler.analyses.linear_layer_changes import matrix
from export.compiler.analyses.projections import Channels, trace
from export.compiler.errors import Refused
from export.compiler.graph.attributes import attribute_int, given, permutation
from export.compiler.graph.constants import UNROUNDED, Array, integers
from export.compiler.graph.def_use import only_reader, other_readers, readers
from export.compiler.graph.node_builder import Nodes
from export.compiler.graph.symbolic_shapes import Dim, Shapes, same, same_shape
from export.compiler.operators.table import RESHAPES, SELECTING

# Orders of a Transpose before heads are joined, and whether its rows are then (Q, B)
JOINING = {(0, 2, 1, 3): False, (2, 0, 1, 3): True, (1, 0, 2): True}


@dataclass(frozen=True)
class Output:
    """An output projection: its MatMul, whose first input are the joined heads, and its weight (heads * E, columns).

    turned: the rows are (Q, B). joining: the Reshape that joins the heads, if it gives the rows more or fewer axes.
    """

    product: ir.Node
    weight: Array
    turned: bool
    joining: ir.Node | None

    @property
    def columns(self) -> int:
        return int(self.weight.shape[1])

    def with_axes(self, nodes: Nodes, new: ir.Value) -> ir.Value:
        """`new` (B, Q, columns) as the product makes it."""
        new = nodes.transpose(new, [1, 0, 2]) if self.turned else new
        if self.joining is None:
            return new
        rows = nodes.cut(given(self.joining, 1), nodes.integers([0]), nodes.integers([-1]))
        return nodes.copy(self.joining, [new, nodes.vector([rows, self.columns])], "projected").outputs[0]


@dataclass(frozen=True)
class Parts:
    """The values and sizes of an attention.

    scores: the node whose first inputs are queries and keys; None if more than scales, biases and masks stand between
    them and the softmax. readers: the nodes that read queries, keys and `value`. joined: in these and in `pooled`, the
    output, batch and heads are a single axis. counted: the number of queries for counting costs.
    """

    scores: ir.Node | None
    value: ir.Value
    pooled: ir.Value
    readers: frozenset[ir.Node]
    key_axis: int  # of the keys: the axis of the tokens
    heads: int
    queries: Dim
    tokens: Dim
    counted: int
    guarded: bool = False  # a guard after the softmax may set rows of weights to zero
    uniform: bool = True  # a term that all tokens share does not change the softmax
    joined: bool = False
    tokenless: bool = False  # there may be no token: then the weights sum to 0


@dataclass(frozen=True)
class AbsorptionPlan:
    """How keys and values follow from the tokens, and which other projections merge with their weights.

    keys: None to leave keys and scores as they are. query: the projection of the queries, to be merged with the keys'
    weight; None to leave it. output: the MatMul behind the heads and its weight, to be merged with the values' weight;
    None to leave it. shared_queries: the queries (H, Q, E) in float64 if all images share them. before, after,
    reordered: multiply-accumulates for an image: now, absorbed, and as `reorder_products` leaves them.
    """

    parts: Parts
    keys: Channels | None
    values: Channels
    query: Channels | None
    output: Output | None
    shared_queries: Array | None
    before: int
    after: int
    reordered: int

    @property
    def features(self) -> int:
        """D, the features of a token of the values."""
        return int(self.values.weight.shape[0])


def plan(shapes: Shapes, parts: Parts) -> AbsorptionPlan:
    """Merges query and output projection where that costs less. Raises Refused if the values cannot be absorbed."""
    heads, length = parts.heads, shapes.nominal(parts.tokens)
    values = traced(shapes, parts.value, heads, 2)
    check_tokens(values)
    keys = _keys(shapes, parts, values)
    if keys is None:
        check_alone([values], parts.readers)
    output = _output(shapes, parts, values)
    costs = _costs(parts, length, values, output.columns if output is not None else 0)
    if not costs.merges:
        output = None
    if keys is None:
        return AbsorptionPlan(parts, None, values, None, output, None, costs.before, costs.after, costs.reordered)
    query, shared_queries = _query(shapes, parts, keys, values), None
    inputs = query.weight.shape[0] if query is not None else 0
    asked = batch_invariant(shapes, query.tokens) if query is not None and not query.turned else None
    if query is not None and asked is not None and asked.ndim == 3:
        shared_queries = asked[0] @ head_weights(query, heads) + query.shift.reshape(heads, 1, -1)
    of_keys = _costs(parts, length, keys, inputs, shared_queries is not None)
    if not of_keys.merges:
        query = None
    costs += of_keys
    sums = costs.before, costs.after, costs.reordered
    return AbsorptionPlan(parts, keys, values, query, output, shared_queries, *sums)


@dataclass(frozen=True)
class _Costs:
    """Multiply-accumulates for an image. merges: whether the projection outside merges with the tokens' weight."""

    before: int
    after: int
    reordered: int
    merges: bool

    def __add__(self, other: _Costs) -> _Costs:
        sums = self.before + other.before, self.after + other.after, self.reordered + other.reordered
        return _Costs(*sums, self.merges and other.merges)


def _costs(parts: Parts, length: int, channels: Channels, outside: int, shared: bool = False) -> _Costs:
    """Of the product with the keys or values, their projection, and the projection of queries or output.

    outside: the features on the other side of that projection, 0 if it cannot merge. shared: all images share the
    queries, so that the merged weight is a constant.
    """
    heads, queries, features, wide = parts.heads, parts.counted, channels.weight.shape[0], channels.columns.size
    projected, plain = features * _distinct(channels) * length, queries * wide * (length + outside)
    apart, merged = queries * wide * (outside + features), 0 if shared else queries * heads * features * outside
    merges = outside > 0 and merged < apart
    after = queries * heads * features * length + (merged if merges else apart)
    reordered = outside * length * (wide + queries * heads)
    is_known = isinstance(parts.queries, int) or isinstance(parts.tokens, int)
    reorders = outside > 0 and is_known and not (shared or parts.joined or parts.tokenless)
    return _Costs(projected + plain, after, projected + (min(plain, reordered) if reorders else plain), merges)


def _distinct(channels: Channels) -> int:
    """The number of columns of the weight that are computed; heads may share them."""
    return len(np.unique(channels.columns))


def traced(shapes: Shapes, value: ir.Value, heads: int | None, token_axis: int) -> Channels:
    """The projection that computes queries, keys or values, with the axes (batch, heads, ...).

    `value` is (batch, heads, ...) or (batch * heads, ...); `heads` of None accepts any number of heads. Raises Refused
    unless `token_axis` of (batch, heads, ...) holds the tokens.
    """
    try:
        return _with_heads(trace(shapes, value), heads, token_axis)
    except Refused:
        with suppress(Refused):  # as in nn.MultiheadAttention
            return _with_heads(trace(shapes, value, tokens_first=True), heads, token_axis)
        raise


def _with_heads(channels: Channels, heads: int | None, token_axis: int) -> Channels:
    """Splits an axis (batch * heads) into batch and heads.

    Raises Refused unless the channels then are (batch, heads, ...) with the tokens on `token_axis`, 2 or 3.
    """
    if channels.columns.ndim == 3 and channels.batch_axis == 0:
        columns, scale, shift = channels.columns[None], channels.scale[None], channels.shift[None]
        channels = channels.arrange(columns, scale, shift, channels.token_axis + 1, 0)
    heads = heads or channels.columns.shape[1]
    width = channels.columns.size // heads
    shape = (1, heads, 1, width) if token_axis == 2 else (1, heads, width, 1)
    if channels.columns.shape != shape or channels.token_axis != token_axis or channels.batch_axis != 0:
        raise Refused.at(channels.path[-1], f"expected {heads} heads, tokens on axis {token_axis}")
    return channels


def check_tokens(values: Channels) -> None:
    """Raises Refused for tokens with fewer bits than float32."""
    if values.tokens.dtype not in UNROUNDED:
        raise Refused(
            values.tokens.name or "", "MatMul", f"new weights of {values.tokens.dtype} would be rounded again"
        )


def _keys(shapes: Shapes, parts: Parts, values: Channels) -> Channels | None:
    """The projection of the keys; None unless a weight alone makes them from tokens as many as those of the values."""
    if parts.scores is None:
        return None
    try:
        keys = traced(shapes, given(parts.scores, 1), parts.heads, parts.key_axis)
        check_alone([keys, values], parts.readers)
    except Refused:
        return None
    return keys if same_shape(keys.rows(shapes), values.rows(shapes)) else None


def check_alone(traced: Sequence[Channels], products: Iterable[ir.Node]) -> None:
    """Raises Refused if a node other than `products` and those on the paths reads a value on the paths.

    Then the projection would have to be computed all the same.
    """
    attention = {*products, *(node for channels in traced for node in channels.path)}
    for node in {node for channels in traced for node in channels.path[_first_selection(channels) :]}:
        for value in node.outputs:
            if node.op_type in SELECTING and not any(use.node in attention for use in value.uses()):
                continue  # the queries' part of a Split
            if others := other_readers(value, attention):
                what = others[0].op_type if others[0] is not None else "the graph's user"
                raise Refused.of(value, f"is read by {what}, too")


def _first_selection(channels: Channels) -> int:
    """The index in `path` of the Split, Slice or Gather that separates keys or values from queries of the same MatMul.

    0 without such a node.
    """
    selections = [index for index, node in enumerate(channels.path) if node.op_type in SELECTING]
    shared = selections and all(
        reader.op_type in SELECTING or reader in channels.path
        for node in channels.path[: selections[0]]
        for value in node.outputs
        for reader in readers(value)
    )
    return selections[0] if shared else 0


def _query(shapes: Shapes, parts: Parts, keys: Channels, values: Channels) -> Channels | None:
    """The projection of the queries, if it can merge with the keys' weight.

    It cannot where the keys have a bias that the softmax does not ignore: that bias is multiplied by the queries.
    """
    if parts.scores is None or (keys.shift.any() and not parts.uniform):
        return None
    try:
        query = traced(shapes, given(parts.scores, 0), parts.heads, 2)
        check_alone([keys, values, query], parts.readers)
    except Refused:
        return None
    return query


def _output(shapes: Shapes, parts: Parts, values: Channels) -> Output | None:
    """The output projection, if it can merge with the values' weight."""
    if parts.guarded and values.shift.any():
        return None
    return output_projection(shapes, parts.pooled, parts.heads, parts.queries, values.columns.size)


def output_projection(shapes: Shapes, pooled: ir.Value, heads: int, queries: Dim, wide: int) -> Output | None:
    """The product with a weight that alone reads the heads (B, H, Q, E), or (B H, Q, E), joined to rows of `wide`.

    Only Reshapes may give the rows (B, Q) other axes. In nn.MultiheadAttention the rows are (Q, B).
    """
    product, turned = _only_consumer(pooled), False
    if product is not None and product.op_type == "Transpose":
        order = tuple(permutation(product, shapes.rank(pooled)))
        if order not in JOINING:
            return None
        product, turned = _only_consumer(product.outputs[0]), JOINING[order]
    elif heads > 1 and not same(queries, 1):
        return None
    joining = None
    while product is not None and product.op_type in RESHAPES:
        joining, product = product, _only_consumer(product.outputs[0])
    weight = matrix(product)
    if joining is None or product is None or weight is None or joining.outputs[0].shape is None:
        return None
    rows, joined = (shapes.dims(pooled)[0], queries), shapes.dims(joining.outputs[0])
    rows = rows[::-1] if turned else rows
    if same_shape(joined, (*rows, wide)):
        return Output(product, weight, turned, None)
    if joining.op_type != "Reshape" or not same(joined[-1], wide):
        return None
    sizes = [] if attribute_int(joining, "allowzero", 0) else integers(joining.inputs[1]) or []
    copied = [axis for axis, size in enumerate(sizes) if size == 0]
    source = shapes.dims(given(joining, 0))
    if any(axis > 1 or not same(source[axis], rows[axis]) for axis in copied):
        return None
    return Output(product, weight, turned, joining)


def _only_consumer(value: ir.Value) -> ir.Node | None:
    """The node that reads the value as its first input, if no other reads it."""
    reader = only_reader(value)
    return reader if reader is not None and reader.inputs[0] is value and not reader.domain else None


def head_weights(channels: Channels, heads: int) -> Array:
    """The weight of every head's projection, with its scales, (H, D, E)."""
    columns, scale = channels.columns.reshape(heads, -1), channels.scale.reshape(heads, -1)
    weight: Array = channels.weight[:, columns].transpose(1, 0, 2) * scale[:, None, :]
    return weight
