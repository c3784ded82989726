"""Third pass: an attention absorbs the projections of its keys and values, where that saves multiplications.

In: a graph, after `read_rows` with few queries in its last block. Out: the same outputs. For a head with keys
K = X Wk + bk and values V = X Wv + bv of the tokens X (B, N, D), and the softmax A over the tokens:

    q K' = (q Wk') X' + q bk'         A V = (A X) Wv + (A 1) bv

The softmax ignores q bk', the same for every token. A 1 = 1, except after a guard that sets a row to zero. The
products grow from E to D features a head. The new factors merge with their neighbours where that costs less:

    q Wk' = x (Wq Wk') + bq Wk'       sum_h A_h V_h Wo_h = sum_h (A_h X) (Wv_h Wo_h) + sum_h bv_h Wo_h
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from export.compiler.analyses.attention import given, pooled_of, scores_of, take_apart, takes_apart
from export.compiler.analyses.demand import analyse
from export.compiler.analyses.few_queries import Array, FewQueries, Parts, head_weights, plan, weight_of
from export.compiler.errors import Refusal, Refused, Site
from export.compiler.graph.attributes import attribute_int, opset
from export.compiler.graph.constants import Constants, of_type
from export.compiler.graph.shapes import Shapes
from export.compiler.passes.drop_unread import drop_unread
from export.compiler.passes.materialise import Materialiser
from export.compiler.passes.outcome import Outcome


def absorb_queries(model: ir.Model, sizes: Mapping[str, int]) -> Outcome:
    sites: list[Site] = []
    refusals: list[Refusal] = []
    shapes = Shapes(model.graph, sizes)
    for node in list(model.graph):
        if node.domain or node.op_type not in ("Softmax", "Attention"):
            continue
        softmax = node
        try:
            site = _check(shapes, node)
            if node.op_type == "Attention":
                softmax = take_apart(shapes, node)
                drop_unread(model)
                site = _check(shapes, softmax)
        except Refused as refused:
            refusals.append(refused.refusal)
            continue
        Absorber(model.graph, site).run()
        drop_unread(model)  # the next attention may be read by what is now unread
        change = f"{site.parts.queries} queries absorb keys and values, {site.before:,} -> {site.after:,} MACs"
        sites.append(Site(softmax.outputs[0].name or "", node.op_type, change))
    if sites:
        Materialiser(shapes, analyse(shapes)).run()  # cuts columns of keys and values off a MatMul with the queries'
    return Outcome(tuple(sites), tuple(refusals))


def _check(shapes: Shapes, node: ir.Node) -> FewQueries:
    """Raises Refused if absorption costs more."""
    site = plan(shapes, _parts_of_operator(shapes, node) if node.op_type == "Attention" else _parts(shapes, node))
    if site.after >= site.before:
        reason = f"absorbed it would cost {site.after:,} MACs, not {site.before:,}"
        raise Refused(node.outputs[0].name or "", node.op_type, reason)
    return site


def _parts(shapes: Shapes, softmax: ir.Node) -> Parts:
    dims, name = shapes.dims(softmax.outputs[0]), softmax.outputs[0].name or ""
    if len(dims) != 4 or attribute_int(softmax, "axis", 1 if opset(softmax) < 13 else -1) not in (-1, 3):
        raise Refused(name, "Softmax", "expected scores (batch, heads, queries, tokens)")
    if not isinstance(dims[1], int) or not isinstance(dims[2], int):
        raise Refused(name, "Softmax", f"expected a known number of queries, found {dims[2]}")
    scores, uniform = scores_of(shapes, softmax)
    pooled, _, guarded = pooled_of(softmax.outputs[0])
    values = given(scores, 0), given(scores, 1), given(pooled, 1), pooled.outputs[0]
    return Parts(*values, frozenset({scores, pooled}), 3, dims[1], dims[2], dims[3], guarded, uniform)


def _parts_of_operator(shapes: Shapes, node: ir.Node) -> Parts:
    values = given(node, 0), given(node, 1), given(node, 2), node.outputs[0]
    return Parts(*values, frozenset({node}), 2, *takes_apart(shapes, node))


class Absorber:
    def __init__(self, graph: ir.Graph, site: FewQueries) -> None:
        self.graph, self.site, self.parts, self.constants = graph, site, site.parts, Constants(graph)
        self.tokens = site.keys.tokens
        self.rows = self.parts.heads * self.parts.queries

    def run(self) -> None:
        scores = next(use.node for use in self.parts.key.uses() if use.node in self.parts.readers)
        pooled = self.parts.pooled.producer() if self.site.output is None else self.site.output
        weights = next(use.node for use in self.parts.value.uses() if use.node in self.parts.readers).inputs[0]
        if pooled is None or weights is None:
            raise Refused(self.parts.pooled.name or "", "MatMul", "expected the product that pools the values")
        ir.convenience.replace_all_uses_with(scores.outputs[0], self._scores())
        old, new = pooled.outputs[0], self._pooled(weights)
        if old.is_graph_output():
            new.name, old.name, new.type = old.name, self.constants.name(f"{old.name}_absorbed"), old.type
        ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)

    def _scores(self) -> ir.Value:
        """(q Wk') X', (batch, heads, queries, tokens)."""
        site, heads = self.site, self.parts.heads
        scores = self._node("MatMul", self._asked(), self._node("Transpose", self.tokens, perm=[0, 2, 1]))
        scores = self._node("Reshape", scores, self._sizes(0, heads, self.parts.queries, -1))
        bias = site.keys.shift.reshape(heads, -1, 1)
        if self.parts.uniform or not bias.any():
            return scores
        return self._node("Add", scores, self._node("MatMul", self.parts.query, self._constant(bias, "key_bias")))

    def _asked(self) -> ir.Value:
        """q Wk', (batch or 1, heads * queries, features)."""
        site, heads, queries = self.site, self.parts.heads, self.parts.queries
        keys = head_weights(site.keys, heads).transpose(0, 2, 1)  # (H, E, D)
        if site.asked is not None:
            return self._constant((site.asked @ keys).reshape(1, self.rows, site.features), "asked")
        if site.query is None:
            asked = self._node("MatMul", self.parts.query, self._constant(keys, "keys"))
            return self._node("Reshape", asked, self._sizes(-1, self.rows, site.features))
        weight = head_weights(site.query, heads) @ keys  # (H, D of the query, D)
        bias = (site.query.shift.reshape(heads, 1, -1) @ keys).ravel()
        joined = weight.transpose(1, 0, 2).reshape(weight.shape[1], -1)
        asked = self._node("MatMul", site.query.tokens, self._constant(joined, "query_keys"))
        if bias.any():
            asked = self._node("Add", asked, self._constant(bias, "query_keys_bias"))
        if queries > 1:
            asked = self._node("Reshape", asked, self._sizes(-1, queries, heads, site.features))
            asked = self._node("Transpose", asked, perm=[0, 2, 1, 3])
        return self._node("Reshape", asked, self._sizes(-1, self.rows, site.features))

    def _pooled(self, weights: ir.Value) -> ir.Value:
        """(A X) Wv + (A 1) bv, (batch, heads, queries, width), or (batch, queries, columns) behind the projection."""
        site, heads, queries = self.site, self.parts.heads, self.parts.queries
        flat = self._node("Reshape", weights, self._sizes(0, self.rows, -1))
        pooled = self._node("MatMul", flat, self.tokens)  # (B, H Q, D)
        if site.output is not None:
            return self._projected(pooled, site.output)
        pooled = self._node("Reshape", pooled, self._sizes(-1, heads, queries, site.features))
        pooled = self._node("MatMul", pooled, self._constant(head_weights(site.values, heads), "values"))
        bias = site.values.shift.reshape(heads, 1, -1)
        if not bias.any():
            return pooled
        added = self._constant(bias, "value_bias")
        if self.parts.guarded:
            added = self._node("Mul", self._sum(weights), added)
        return self._node("Add", pooled, added)

    def _projected(self, pooled: ir.Value, product: ir.Node) -> ir.Value:
        """sum_h (A_h X) (Wv_h Wo_h) + bv Wo."""
        site, heads, queries, output = self.site, self.parts.heads, self.parts.queries, weight_of(product)
        weight = head_weights(site.values, heads) @ output.reshape(heads, -1, output.shape[1])  # (H, D, columns)
        if queries > 1:
            pooled = self._node("Reshape", pooled, self._sizes(-1, heads, queries, site.features))
            pooled = self._node("Transpose", pooled, perm=[0, 2, 1, 3])
        pooled = self._node("Reshape", pooled, self._sizes(-1, queries, heads * site.features))
        made = self._node("MatMul", pooled, self._constant(weight.reshape(-1, output.shape[1]), "values_output"))
        bias: Array = site.values.shift.ravel() @ output
        if not bias.any() or self.constants.add_to_bias(product.outputs[0], bias):
            return made
        return self._node("Add", made, self._constant(bias, "values_output_bias"))

    def _sum(self, weights: ir.Value) -> ir.Value:
        if self.graph.opset_imports[""] < 13:
            return self._node("ReduceSum", weights, axes=[-1], keepdims=1)
        return self._node("ReduceSum", weights, self._sizes(-1), keepdims=1)

    def _node(self, operator: str, *inputs: ir.Value, **attributes: int | list[int]) -> ir.Value:
        new = ir.node(operator, inputs, attributes=attributes)
        new.outputs[0].name = self.constants.name(f"{self.parts.pooled.name}_{operator}")
        new.name = new.outputs[0].name
        self.graph.append(new)
        return of_type(new.outputs[0], self.tokens.dtype)

    def _constant(self, array: Array, name: str) -> ir.Value:
        return self.constants.add(array, f"{self.parts.pooled.name}_{name}", self.tokens.dtype)

    def _sizes(self, *numbers: int) -> ir.Value:
        return self.constants.add_integers([*numbers], "shape")
