"""Second pass: an attention with few queries absorbs the projections of keys and values.

In: a graph after `read_rows`, whose last block has one or two queries. Out: the same outputs. For head h with keys
K = X Wk + bk and values V = X Wv + bv of the tokens X (B, N, D), and the softmax A over the tokens:

    q K' = (q Wk') X' + q bk'         A V = (A X) Wv + (A 1) bv

The softmax ignores q bk': it is the same for every token. A 1 = 1, so the value bias is a constant, except after a
guard that sets a row to zero. Keys and values are never computed; the products grow from E to D features a head.
This pays only for few queries, so the cost decides. With all queries it cost more in every network that we tried.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from export.onnx_rewrites.attention import given, pooled_of, scores_of, take_apart, takes_apart
from export.onnx_rewrites.attributes import attribute_int, reads_shape_alone
from export.onnx_rewrites.channels import Channels, trace
from export.onnx_rewrites.constants import Constants, of_type
from export.onnx_rewrites.demand import analyse
from export.onnx_rewrites.errors import Refusal, Refused, Site
from export.onnx_rewrites.materialise import Materialiser
from export.onnx_rewrites.prepare import Prepare
from export.onnx_rewrites.results import RewriteResult
from export.onnx_rewrites.shapes import Dim, Shapes
from export.onnx_rewrites.unread import drop_unread

SELECTING = frozenset({"Split", "Slice", "Gather"})


@dataclass(frozen=True)
class FewQueries:
    """An attention worth absorbing: its two products, the left operand of the second, keys and values, and the cost."""

    scores: ir.Node
    weights: ir.Value
    pooled: ir.Node
    keys: Channels
    values: Channels
    heads: int
    queries: int
    guarded: bool
    uniform: bool
    before: int
    after: int


class AbsorbQueries(ir.passes.InPlacePass):
    """Absorbs key and value projections if that saves multiplications; `sizes` gives the free dimensions."""

    name = "absorb-queries"

    def __init__(self, sizes: Mapping[str, int] | None = None) -> None:
        super().__init__()
        self.sizes = dict(sizes or {})

    def check(self, shapes: Shapes, softmax: ir.Node) -> FewQueries:
        """The attention around a Softmax; raises Refused if there is no attention or no saving."""
        dims = shapes.dims(softmax.outputs[0])
        name = softmax.outputs[0].name or ""
        if len(dims) != 4 or attribute_int(softmax, "axis", -1) not in (-1, 3):
            raise Refused(name, "Softmax", "expected scores (batch, heads, queries, tokens)")
        if not isinstance(dims[1], int) or not isinstance(dims[2], int):
            raise Refused(name, "Softmax", f"expected a known number of queries, found {dims[2]}")
        scores, uniform = scores_of(shapes, softmax)
        pooled, weights, guarded = pooled_of(softmax.outputs[0])
        keys, values = trace(shapes, given(scores, 1)), trace(shapes, given(pooled, 1))
        check_layout(keys, dims[1], 3)
        check_layout(values, dims[1], 2)
        check_alone(keys, values, {scores, pooled})
        before, after = cost(shapes, keys, values, dims[1], dims[2], dims[3])
        if after >= before:
            raise Refused(name, "Softmax", f"absorbed it would cost {after:,} MACs, not {before:,}")
        return FewQueries(scores, weights, pooled, keys, values, dims[1], dims[2], guarded, uniform, before, after)

    def rewrite(self, model: ir.Model, site: FewQueries) -> None:
        Absorber(model.graph, site).run()
        drop_unread(model)

    def call(self, model: ir.Model) -> RewriteResult:
        """Rewrites every attention that gets cheaper and reports the refusals."""
        Prepare()(model)
        sites: list[Site] = []
        refusals: list[Refusal] = []
        for node in list(model.graph):
            if node.domain or node.op_type not in ("Softmax", "Attention"):
                continue
            shapes = Shapes(model.graph, self.sizes)
            try:
                softmax = self._take_apart(model, shapes, node) if node.op_type == "Attention" else node
                site = self.check(Shapes(model.graph, self.sizes), softmax)
            except Refused as refused:
                refusals.append(refused.refusal)
                continue
            self.rewrite(model, site)
            change = f"{site.queries} queries absorb keys and values, {site.before:,} -> {site.after:,} MACs"
            sites.append(Site(softmax.outputs[0].name or "", node.op_type, change))
        if sites:
            self._trim(model)
        return RewriteResult(model, bool(sites), tuple(sites), tuple(refusals))

    def _trim(self, model: ir.Model) -> None:
        """Cuts the unused columns of keys and values off a MatMul that also makes the queries."""
        shapes = Shapes(model.graph, self.sizes)
        Materialiser(shapes, analyse(shapes)).run()
        drop_unread(model)

    def _take_apart(self, model: ir.Model, shapes: Shapes, node: ir.Node) -> ir.Node:
        """Writes out an Attention that gets cheaper and returns its Softmax; raises Refused for others."""
        heads, queries, tokens = takes_apart(shapes, node)
        keys, values = trace(shapes, given(node, 1)), trace(shapes, given(node, 2))
        check_layout(keys, heads, 2)
        check_layout(values, heads, 2)
        check_alone(keys, values, {node})
        before, after = cost(shapes, keys, values, heads, queries, tokens)
        if after >= before:
            raise Refused(node.outputs[0].name or "", "Attention", f"absorbed: {after:,} MACs, not {before:,}")
        softmax = take_apart(shapes, node)
        drop_unread(model)
        return softmax


def check_layout(channels: Channels, heads: int, token_axis: int) -> None:
    """Raises Refused unless the value is (batch, heads, ...) with the tokens on `token_axis` (2 or 3)."""
    width = channels.columns.size // heads
    shape = (1, heads, 1, width) if token_axis == 2 else (1, heads, width, 1)
    if channels.columns.shape != shape or channels.token_axis != token_axis or channels.batch_axis != 0:
        name = channels.path[-1].outputs[0].name or ""
        raise Refused(name, channels.path[-1].op_type, f"expected {heads} heads, tokens on axis {token_axis}")


def check_alone(keys: Channels, values: Channels, readers: set[ir.Node]) -> None:
    """Raises Refused if keys and values come from different tokens, or if another node reads them too."""
    if keys.tokens.dtype not in (ir.DataType.FLOAT, ir.DataType.DOUBLE):
        raise Refused(keys.tokens.name or "", "MatMul", f"new weights of {keys.tokens.dtype} would be rounded again")
    if keys.tokens is not values.tokens:
        raise Refused(values.path[-1].outputs[0].name or "", "Softmax", "keys and values are made from other tokens")
    inside = {*keys.path, *values.path, *readers}
    for node in {*keys.path[_first_selection(keys) :], *values.path[_first_selection(values) :]}:
        for value in node.outputs:
            others = [use.node for use in value.uses() if use.node not in inside and not reads_shape_alone(use.node)]
            if node.op_type in SELECTING and not any(use.node in inside for use in value.uses()):
                continue  # the queries' part of a Split
            if others or value.is_graph_output():
                what = others[0].op_type if others else "the graph's user"
                raise Refused(value.name or "", node.op_type, f"is read by {what}, too")


def _first_selection(channels: Channels) -> int:
    """The path index where keys or values part from the queries, which may share their MatMul."""
    places = [place for place, node in enumerate(channels.path) if node.op_type in SELECTING]
    shared = places and all(
        use.node.op_type in SELECTING or use.node in channels.path or reads_shape_alone(use.node)
        for node in channels.path[: places[0]]
        for value in node.outputs
        for use in value.uses()
    )
    return places[0] if shared else 0


def cost(shapes: Shapes, keys: Channels, values: Channels, heads: int, queries: int, tokens: Dim) -> tuple[int, int]:
    """Multiply-accumulates of projections and products for one image or text, before and after absorption."""
    channels = keys.columns.size + values.columns.size
    features, length = keys.weight.shape[0], shapes.nominal(tokens)
    before = (features + queries) * length * channels
    after = queries * features * (channels + 2 * heads * length)
    return before, after


class Absorber:
    """Carries out one absorption."""

    def __init__(self, graph: ir.Graph, site: FewQueries) -> None:
        self.graph, self.site, self.constants = graph, site, Constants(graph)
        self.tokens = site.keys.tokens
        self.features = site.keys.weight.shape[0]

    def run(self) -> None:
        ir.convenience.replace_all_uses_with(self.site.scores.outputs[0], self._scores())
        ir.convenience.replace_all_uses_with(self.site.pooled.outputs[0], self._pooled())

    def _scores(self) -> ir.Value:
        """((q Wk') X', (batch, heads, queries, tokens)."""
        site, query = self.site, given(self.site.scores, 0)
        rows = site.heads * site.queries
        asked = self._node("MatMul", query, self._constant(_weight(site.keys, site.heads).transpose(0, 2, 1), "keys"))
        asked = self._node("Reshape", asked, self._sizes(-1, rows, self.features))
        scores = self._node("MatMul", asked, self._node("Transpose", self.tokens, perm=[0, 2, 1]))
        scores = self._node("Reshape", scores, self._sizes(0, site.heads, site.queries, -1))
        bias = site.keys.shift.reshape(site.heads, -1, 1)
        if site.uniform or not bias.any():
            return scores
        return self._node("Add", scores, self._node("MatMul", query, self._constant(bias, "key_bias")))

    def _pooled(self) -> ir.Value:
        """(A X) Wv + (A 1) bv, (batch, heads, queries, width)."""
        site, weights = self.site, self.site.weights
        rows = site.heads * site.queries
        flat = self._node("Reshape", weights, self._sizes(0, rows, -1))
        pooled = self._node("MatMul", flat, self.tokens)
        pooled = self._node("Reshape", pooled, self._sizes(-1, site.heads, site.queries, self.features))
        pooled = self._node("MatMul", pooled, self._constant(_weight(site.values, site.heads), "values"))
        bias = site.values.shift.reshape(site.heads, 1, -1)
        if not bias.any():
            return pooled
        added = self._constant(bias, "value_bias")
        if site.guarded:
            added = self._node("Mul", self._sum(weights), added)
        return self._node("Add", pooled, added)

    def _sum(self, weights: ir.Value) -> ir.Value:
        if self.graph.opset_imports[""] < 13:
            return self._node("ReduceSum", weights, axes=[-1], keepdims=1)
        return self._node("ReduceSum", weights, self._sizes(-1), keepdims=1)

    def _node(self, operator: str, *inputs: ir.Value, **attributes: int | list[int]) -> ir.Value:
        new = ir.node(operator, inputs, attributes=attributes)
        new.outputs[0].name = self.constants.name(f"{self.site.pooled.outputs[0].name}_{operator}")
        new.name = new.outputs[0].name
        self.graph.append(new)
        return of_type(new.outputs[0], self.tokens.dtype)

    def _constant(self, array: NDArray[np.float64], name: str) -> ir.Value:
        return self.constants.add(array, f"{self.site.pooled.outputs[0].name}_{name}", self.tokens.dtype)

    def _sizes(self, *numbers: int) -> ir.Value:
        return self.constants.add_integers([*numbers], "shape")


def _weight(channels: Channels, heads: int) -> NDArray[np.float64]:
    """The projection of every head with its scales, (heads, D, width)."""
    columns, scale = channels.columns.reshape(heads, -1), channels.scale.reshape(heads, -1)
    weight: NDArray[np.float64] = channels.weight[:, columns].transpose(1, 0, 2) * scale[:, None, :]
    return weight
