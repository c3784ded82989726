"""Multiplies the weights of queries and output into keys and values where these are few, as in the attention of an
image to a prompt, or to keys that a convolution made fewer.

In: any graph. Out: the same outputs. For a head with tokens X (B, Q, D), keys K (B, N, E), values V (B, N, E),
attention weights A, and the columns Wq and rows Wo of the head:

    (X Wq + bq) K' = X (Wq K') + bq K'          sum_h (A_h V_h) Wo_h = [A_1 ... A_H] [V_1 Wo_1; ...; V_H Wo_H]

Keys and values may be any: turned by their position, normalised, shared by heads. Images and prompts count as one
batch. Multiply-accumulates for H heads of E
features and C columns of the output:

    queries:  Q D H E + Q N H E   becomes   N H E D + Q N H D
    output:   Q N H E + Q H E C   becomes   N H E C + Q N H C

Reads a MatMul of (batch, heads, queries, features) by (batch, heads, features, tokens), and what is around it.

Refuses, by the name of the MatMul or of the node in the way: queries of another form, or that other nodes read, too; no
output projection behind the heads; an unknown number of both queries and tokens; more multiplications.
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from export.compiler.analyses.absorption_plan import check_alone, head_weights, output_projection, traced
from export.compiler.analyses.empty_axes import may_be_empty
from export.compiler.errors import Refused, Site
from export.compiler.graph.attributes import given, mixes_last_axis, permutation
from export.compiler.graph.constants import UNROUNDED, Array, Constants
from export.compiler.graph.def_use import made_by, only_reader
from export.compiler.graph.node_builder import Nodes
from export.compiler.graph.symbolic_shapes import Dim, Shapes, same
from export.compiler.passes.drop_unread import refresh
from export.compiler.passes.outcome import Outcome

SWAP = [0, 2, 1, 3]  # (batch, heads, rows, features) <-> (batch, rows, heads, features)


def reorder_products(model: ir.Model, sizes: Mapping[str, int]) -> Outcome:
    sites, refusals = list[Site](), list[Site]()
    shapes = Shapes(model.graph, sizes)
    for node in list(model.graph):
        if node.domain or node.op_type != "MatMul" or any(_rank(value) != 4 for value in node.inputs):
            continue
        for reorder in (_reorder_queries, _reorder_output):
            try:
                sites.append(reorder(shapes, node))
            except Refused as refused:
                refusals.append(refused.refusal)
                continue
            refresh(model)
            break
    return Outcome(tuple(sites), tuple(refusals))


def _rank(value: ir.Value | None) -> int | None:
    return value.shape.rank() if value is not None and value.shape is not None else None


def _reorder_queries(shapes: Shapes, scores: ir.Node) -> Site:
    """Puts the product of the queries' tokens in place of `scores`. Raises Refused first."""
    keys = given(scores, 1)
    query = traced(shapes, given(scores, 0), None, 2)
    check_alone([query], [scores])
    heads, features, wide = query.columns.shape[1], len(query.weight), query.columns.size
    _, score_heads, queries, tokens = shapes.dims(scores.outputs[0])
    if not same(score_heads, heads):
        raise Refused.at(scores, "expected queries with as many heads as the scores")
    rows, length = shapes.nominal(queries), shapes.nominal(tokens)
    before, after = rows * wide * (features + length), length * features * (wide + rows * heads)
    _expect_fewer(scores, before, after)

    build = _Builder(shapes, scores, heads, queries, tokens, (keys, 3))
    nodes = build.nodes
    weighted = build.columns(keys, head_weights(query, heads).transpose(0, 2, 1), "query")  # (B, D, H N)
    new = nodes.add("MatMul", [query.three_axes(nodes), weighted])  # (B, Q, H N)
    if query.shift.any():
        new = nodes.add("Add", [new, build.columns(keys, query.shift.reshape(heads, -1, 1), "query_bias")])
    new = nodes.transpose(nodes.reshape(new, [*build.rows, heads, build.count]), SWAP)
    nodes.constants.replace(scores.outputs[0], new, "reordered")
    return Site.at(scores, f"the keys take the weight of the queries, {before:,} -> {after:,} MACs")


def _reorder_output(shapes: Shapes, pooled: ir.Node) -> Site:
    """Puts the product by values and output weight in place of the output projection. Raises Refused first."""
    weights, values = given(pooled, 0), given(pooled, 1)
    (_, heads, queries, width), (_, weight_heads, _, tokens) = shapes.dims(pooled.outputs[0]), shapes.dims(weights)
    if not isinstance(heads, int) or not isinstance(width, int) or not same(weight_heads, heads):
        raise Refused.at(pooled, "expected a known number of heads and features")
    output = output_projection(shapes, pooled.outputs[0], heads, queries, heads * width)
    if output is None:
        raise Refused.at(pooled, "expected heads that an output projection alone reads")
    columns, wide = output.columns, heads * width
    rows, length = shapes.nominal(queries), shapes.nominal(tokens)
    before, after = rows * wide * (length + columns), length * columns * (wide + rows * heads)
    _expect_fewer(pooled, before, after)

    build = _Builder(shapes, pooled, heads, queries, tokens, (values, 2))
    nodes = build.nodes
    by_head = build.by_head(
        nodes.transpose(values, [1, 0, 2, 3]), output.weight.reshape(heads, width, columns), "output"
    )
    by_token = nodes.transpose(by_head, [1, 0, 2, 3])
    factors = (
        nodes.reshape(_by_query(nodes, weights), [*build.rows, build.joined]),  # (B, Q, H N)
        nodes.reshape(by_token, [build.rows[0], build.joined, columns]),  # (B, H N, C)
    )
    new = output.with_axes(nodes, nodes.add("MatMul", factors))
    nodes.constants.replace(output.product.outputs[0], new, "reordered")
    return Site.at(pooled, f"the values take the output's weight, {before:,} -> {after:,} MACs")


def _expect_fewer(product: ir.Node, before: int, after: int) -> None:
    if product.outputs[0].dtype not in UNROUNDED:
        raise Refused.at(product, f"new products of {product.outputs[0].dtype} would be rounded again")
    if after >= before:
        raise Refused.at(product, f"reordered it would cost {after:,} MACs, not {before:,}")


def _by_query(nodes: Nodes, weights: ir.Value) -> ir.Value:
    """The weights (B, H, Q, N) as (B, Q, H, N): the softmax itself moves there where its scores came from there."""
    softmax = made_by(weights, "Softmax")
    if softmax is not None and only_reader(weights) is not None and mixes_last_axis(softmax, 4):
        turned = made_by(given(softmax, 0), "Transpose")
        if turned is not None and permutation(turned, 4) == SWAP:
            return nodes.add("Softmax", [given(turned, 0)], axis=3)
    return nodes.transpose(weights, SWAP)


class _Builder:
    """Adds new nodes at the end of the graph; `refresh` sorts it.

    rows: sizes of batch and queries for a Reshape. count, joined: the number N of tokens, and H N. Where N is free,
    ONNX Runtime writes a computed size as -1 unless -1 stands elsewhere, and -1 fails beside an empty axis.
    """

    def __init__(
        self, shapes: Shapes, product: ir.Node, heads: int, queries: Dim, tokens: Dim, at: tuple[ir.Value, int]
    ) -> None:
        if may_be_empty(shapes, tokens) or not (isinstance(tokens, int) or isinstance(queries, int)):
            raise Refused.at(product, f"expected a known number of tokens, found {tokens}")
        self.nodes = Nodes(Constants(shapes.graph), product.outputs[0].name or "", shapes.graph.append)
        self.dtype = product.outputs[0].dtype
        self.rows = (-1, queries) if isinstance(queries, int) and not isinstance(tokens, int) else (0, 0)
        self.count: int | ir.Value
        self.joined: int | ir.Value
        if isinstance(tokens, int):
            self.count, self.joined = tokens, heads * tokens
        else:
            self.count = self.nodes.sizes(at[0], [at[1]])
            self.joined = self.nodes.add("Mul", [self.count, self.nodes.integers([heads])])

    def by_head(self, value: ir.Value, weights: Array, name: str) -> ir.Value:
        """Multiplies each head by its weight: (H, B, N, E), or (1, B, N, E), by (H, E, columns) -> (H, B, N, columns).

        The heads come first, and B and N are one axis: ONNX Runtime broadcasts no empty batch.
        """
        heads, width, columns = weights.shape
        factor = self.nodes.constants.add(weights, f"{self.nodes.prefix}_{name}", self.dtype)
        product = self.nodes.add("MatMul", [self.nodes.reshape(value, [0, -1, width]), factor])
        return self.nodes.reshape(product, [heads, -1, self.count, columns])

    def columns(self, keys: ir.Value, weights: Array, name: str) -> ir.Value:
        """Keys (B, H, E, N) by (H, E, features) -> (B, features, H N)."""
        product = self.by_head(self.nodes.transpose(keys, [1, 0, 3, 2]), weights, name)
        by_feature = self.nodes.transpose(product, [1, 3, 0, 2])
        return self.nodes.reshape(by_feature, [self.rows[0], weights.shape[2], self.joined])
