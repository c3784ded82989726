"""Absorbs the patch embedding into an attention with a constant query: patches serve as its keys and values.

In: a graph after `absorb_queries`. Out: the same outputs without the linear layer W that makes tokens of patches P.
T holds what is added to the tokens: class token, positions and bias. For the weight Q of the scores, the attention
weights A_h of a head, and the product V_h of the head's value weight and output weight:

    X = pad(P W) + T
    X Q = pad(P (W Q)) + T Q
    sum_h A_h X V_h = sum_h (A_h' P) (W V_h) + sum_h A_h (T V_h),    A_h' the columns of A_h for the patches

Reads the Softmax, its MatMuls, and the tokens X (batch, tokens, features). Other readers of X may only compute what is
the same for every image, as the class token's row in the residual stream; that becomes a constant.

Refuses, by the name of the Softmax or of the node in the way: a query that differs between images; scores, weights or
heads with other readers; tokens that are no patch embedding, or that other nodes read; more multiplications.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from export.compiler.analyses.batch_invariant import batch_invariant
from export.compiler.analyses.linear_layer_changes import matrix
from export.compiler.analyses.patch_embedding import PatchEmbedding, patch_embedding
from export.compiler.errors import Refused, Site, operator
from export.compiler.graph.attributes import given, mixes_last_axis, opset, permutation
from export.compiler.graph.constants import Array, Constants
from export.compiler.graph.def_use import made_by, only_reader, readers
from export.compiler.graph.node_builder import Nodes
from export.compiler.graph.symbolic_shapes import Shapes
from export.compiler.operators.table import RESHAPES
from export.compiler.passes.outcome import Outcome

OLDEST_OPSET = 11  # pads as an input


@dataclass(frozen=True)
class PatchAttention:
    """The only attention that reads the embedded tokens.

    scores: the MatMul X Q by `query`. pooled: the MatMul A X. output: the MatMul of (batch, queries, heads * features)
    by V_h, the `weights` (heads, features, columns).
    """

    tokens: PatchEmbedding
    scores: ir.Node
    query: Array
    pooled: ir.Node
    output: ir.Node
    weights: Array
    shared: Mapping[ir.Value, Array]  # values made of X that are the same for every image
    queries: int
    heads: int

    def macs(self) -> tuple[int, int]:
        """Multiply-accumulates an image, before and after."""
        pixels, features = self.tokens.weight.shape
        patches, tokens, score_columns = self.tokens.rows, len(self.tokens.table), self.queries * self.heads
        columns = self.queries * self.weights.shape[2]
        before = patches * pixels * features + 2 * tokens * features * score_columns + self.heads * features * columns
        return before, 2 * patches * pixels * score_columns + self.heads * (pixels + tokens) * columns


def absorb_embedding(model: ir.Model, sizes: Mapping[str, int]) -> Outcome:
    sites: list[Site] = []
    refusals: list[Site] = []
    for node in list(model.graph):
        if node.op_type != "Softmax" or node.domain:
            continue
        try:
            attention = _attention(Shapes(model.graph, sizes), node)
            before, after = attention.macs()
            if after >= before:
                raise Refused.at(node, f"absorbed: {after:,} MACs, not {before:,}")
        except Refused as refused:
            refusals.append(refused.refusal)
            continue
        change = f"the patches are its keys and values, {before:,} -> {after:,} MACs an image"
        sites.append(Site.at(node, change))
        _Builder(model.graph, attention).run()
    return Outcome(tuple(sites), tuple(refusals))


def _attention(shapes: Shapes, softmax: ir.Node) -> PatchAttention:
    """The attention around a Softmax. Raises Refused as in the module's docstring."""
    weights, name = softmax.outputs[0], softmax.outputs[0].name or ""
    scores, query = _scores(shapes, softmax)
    tokens = given(scores, 0)
    pooled = _only_reader(weights)
    if pooled.op_type != "MatMul" or pooled.inputs[1] is not tokens:
        raise Refused(name, pooled.op_type, "expected weights by the tokens of the scores")
    joined = _only_reader(pooled.outputs[0])
    if joined.op_type not in RESHAPES or shapes.rank(joined.outputs[0]) != 3:
        raise Refused(name, joined.op_type, "expected heads that are joined")
    output = _only_reader(joined.outputs[0])
    if (weight := matrix(output)) is None:
        raise Refused(name, output.op_type, "expected the product with a weight behind the heads")
    embedding = patch_embedding(shapes, tokens)
    queries, width = shapes.static(joined.outputs[0], 1), shapes.static(joined.outputs[0], 2)
    rows = shapes.static(weights, 1)  # queries * heads
    if queries is None or width is None or rows is None or rows * embedding.weight.shape[1] != queries * width:
        raise Refused(name, joined.op_type, "expected heads that are joined")
    shared: dict[ir.Value, Array] = {}
    for node in (node for node in readers(tokens) if node not in (scores, pooled)):
        if (array := batch_invariant(shapes, node.outputs[0])) is None:
            raise Refused(tokens.name or "", node.op_type, "reads the tokens, too")
        shared[node.outputs[0]] = array
    if tokens.is_graph_output() or opset(softmax) < OLDEST_OPSET:
        raise Refused(tokens.name or "", "graph output", "its tokens are read by the graph's user")
    heads = rows // queries
    by_head = weight.reshape(heads, -1, weight.shape[1])
    return PatchAttention(embedding, scores, query, pooled, output, by_head, shared, queries, heads)


def _scores(shapes: Shapes, softmax: ir.Node) -> tuple[ir.Node, Array]:
    """The MatMul of X and a constant query in Softmax(Transpose(MatMul(X, Q))), and the query. Raises Refused."""
    operand = given(softmax, 0)
    transpose = made_by(operand, "Transpose")
    over_tokens = shapes.rank(softmax.outputs[0]) == 3 and mixes_last_axis(softmax, 3)
    is_swap = transpose is not None and over_tokens and permutation(transpose, 3) == [0, 2, 1]
    scores = made_by(transpose.inputs[0], "MatMul") if transpose is not None and is_swap else None
    query = matrix(scores)
    if transpose is None or scores is None or query is None:
        reason = "expected scores of a query that all images share"
        raise Refused(softmax.outputs[0].name or "", operator(operand), reason)
    if _only_reader(scores.outputs[0]) is not transpose or _only_reader(transpose.outputs[0]) is not softmax:
        raise Refused.at(softmax, "expected scores that it alone reads")
    return scores, query


def _only_reader(value: ir.Value) -> ir.Node:
    """Raises Refused unless a single node reads the value."""
    reader = only_reader(value)
    if reader is None:
        raise Refused(value.name or "", "Softmax", f"expected one reader, found {len(readers(value))}")
    return reader


class _Builder:
    def __init__(self, graph: ir.Graph, attention: PatchAttention) -> None:
        self.graph, self.attention, self.constants = graph, attention, Constants(graph)
        self.nodes = Nodes(self.constants, attention.output.outputs[0].name or "", graph.append)

    def run(self) -> None:
        """Adds the new nodes at the end of the graph; the caller removes unused nodes and sorts the graph."""
        for value, array in self.attention.shared.items():
            ir.convenience.replace_all_uses_with(value, self._constant(array, "shared"))
        scores, output = self.attention.scores.outputs[0], self.attention.output.outputs[0]
        ir.convenience.replace_all_uses_with(scores, self._scores())
        self.constants.replace(output, self._output(), "absorbed")

    def _scores(self) -> ir.Value:
        """pad(P (W Q)) + T Q, (batch, rows, queries * heads)."""
        tokens, query = self.attention.tokens, self.attention.query
        scores = self.nodes.add("MatMul", [tokens.patches, self._constant(tokens.weight @ query, "query")])
        before, after = tokens.start, len(tokens.table) - tokens.start - tokens.rows
        if before or after:
            scores = self.nodes.add("Pad", [scores, self.nodes.integers([0, before, 0, 0, after, 0])])
        return self.nodes.add("Add", [scores, self._constant(tokens.table @ query, "table")])

    def _output(self) -> ir.Value:
        """sum_h (A_h' P) (W V_h) + sum_h A_h (T V_h), (batch, queries, columns)."""
        attention, tokens, weights = self.attention, self.attention.tokens, given(self.attention.pooled, 0)
        patch_weights = weights
        if tokens.rows < len(tokens.table):
            start, end = (self.nodes.integers([row]) for row in (tokens.start, tokens.start + tokens.rows))
            patch_weights = self.nodes.cut(weights, start, end, 2)
        values = attention.weights
        pooled = self.nodes.add("MatMul", [patch_weights, tokens.patches])
        patches = self._sum_over_heads(pooled, tokens.weight @ values, "patches")
        return self.nodes.add("Add", [patches, self._sum_over_heads(weights, tokens.table @ values, "tables")])

    def _sum_over_heads(self, by_head: ir.Value, weights: Array, name: str) -> ir.Value:
        """(batch, queries * heads, width) by (heads, width, columns), summed over the heads."""
        heads, width, columns = weights.shape
        joined = self.nodes.reshape(by_head, [0, self.attention.queries, heads * width])
        return self.nodes.add("MatMul", [joined, self._constant(weights.reshape(heads * width, columns), name)])

    def _constant(self, array: Array, name: str) -> ir.Value:
        base = f"{self.attention.output.outputs[0].name}_{name}"
        return self.constants.add(np.asarray(array, np.float64), base, self.attention.tokens.patches.dtype)
