"""Builds an attention whose keys and values are the tokens themselves.

In: the plan of `absorption_plan`. Out: the same answers. `absorb_queries` has the equations. Without a mask or a bias
between scores and weights the rows stay in the order (query, head), in which the products need no Transpose.
"""

from __future__ import annotations

from functools import cached_property

import onnx_ir as ir

from export.compiler.analyses.absorption_plan import AbsorptionPlan, head_weights, weight_of
from export.compiler.errors import Refused
from export.compiler.graph.constants import Array, Constants
from export.compiler.graph.def_use import made_of
from export.compiler.graph.node_builder import BOOL, Nodes


class Absorber:
    def __init__(self, graph: ir.Graph, site: AbsorptionPlan) -> None:
        self.graph, self.site, self.parts, self.constants = graph, site, site.parts, Constants(graph)
        self.nodes = Nodes(self.constants, self.parts.pooled.name or "", graph.append)
        self.tokens = site.keys.tokens
        self.rows = self.parts.heads * self.parts.queries

    def run(self) -> None:
        scores = next(use.node for use in self.parts.key.uses() if use.node in self.parts.readers)
        pooled = self.parts.pooled.producer() if self.site.output is None else self.site.output
        weights = next(use.node for use in self.parts.value.uses() if use.node in self.parts.readers).inputs[0]
        if pooled is None or weights is None:
            raise Refused(self.parts.pooled.name or "", "MatMul", "expected the product that pools the values")
        if self._is_plain(scores, weights):
            old, new = pooled.outputs[0], self._plain()
        else:
            ir.convenience.replace_all_uses_with(scores.outputs[0], self._scores())
            old, new = pooled.outputs[0], self._pooled(weights)
        self.constants.replace(old, new, "absorbed")

    def _is_plain(self, scores: ir.Node, weights: ir.Value) -> bool:
        """Whether queries and keys have merged, nothing but the Softmax stands between the products, and the order of
        the rows is free.
        """
        alone = made_of(weights, "Softmax") is scores.outputs[0]
        return alone and self.site.query is not None and (self.site.output is not None or self.parts.queries == 1)

    def _plain(self) -> ir.Value:
        """Rows have the order (query, head): a Reshape makes (batch, rows, D) of (batch, queries, heads * D)."""
        site, queries, wide = self.site, self.parts.queries, self.parts.heads * self.site.features
        if site.shared_queries is not None:
            weight = (site.shared_queries @ self._keys()).transpose(2, 1, 0).reshape(site.features, self.rows)
            scores = self._node("MatMul", self.tokens, self._constant(weight, "asked"))
            scores = self.nodes.transpose(scores, [0, 2, 1])
        else:
            asked = self.nodes.reshape(self._query_keys(), [0, self.rows, site.features])
            scores = self._node("MatMul", asked, self.nodes.transpose(self.tokens, [0, 2, 1]))
        pooled = self._node("MatMul", self._node("Softmax", scores, axis=2), self.tokens)  # (B, Q H, D)
        if site.output is not None:
            return self._projected(self.nodes.reshape(pooled, [0, queries, wide]))
        return self._values_of_one_query(pooled)

    def _values_of_one_query(self, pooled: ir.Value) -> ir.Value:
        """(batch, heads, D) -> (batch, heads, 1, width): the batches of each head in one product."""
        site, heads = self.site, self.parts.heads
        apart = self.nodes.reshape(pooled, [0, heads, 1, site.features])
        made = self._by_head(apart, head_weights(site.values, heads), "values")
        if site.values.shift.any():
            made = self._node("Add", made, self._value_bias(site.values.shift.reshape(heads, 1, -1), "value_bias"))
        return self._joined(made, head_weights(site.values, heads).shape[2])

    def _joined(self, made: ir.Value, width: int) -> ir.Value:
        """(batch, heads, queries, width) with the axes of the original's heads."""
        return self.nodes.reshape(made, [-1, self.parts.queries, width]) if self.parts.joined else made

    def _apart(self, value: ir.Value, width: int) -> ir.Value:
        """A value of the original as (batch, heads, queries, width)."""
        sizes = -1, self.parts.heads, self.parts.queries, width
        return self.nodes.reshape(value, sizes) if self.parts.joined else value

    def _scores(self) -> ir.Value:
        """(q Wk') X', (batch, heads, queries, tokens) or (batch * heads, queries, tokens)."""
        site, heads, queries = self.site, self.parts.heads, self.parts.queries
        if site.shared_queries is not None:
            weight = (site.shared_queries @ self._keys()).reshape(self.rows, site.features).T
            scores = self._node("MatMul", self.tokens, self._constant(weight, "asked"))  # (B, N, H Q)
            if self.parts.joined:
                scores = self.nodes.transpose(scores, [0, 2, 1])
                scores = self.nodes.reshape(scores, [-1, queries, 0])
            else:
                scores = self.nodes.reshape(scores, [0, 0, heads, queries])
                scores = self.nodes.transpose(scores, [0, 2, 3, 1])
        else:
            scores = self._node("MatMul", self._asked(), self.nodes.transpose(self.alone, [0, 1, 3, 2]))
            if self.parts.joined:
                scores = self.nodes.reshape(self.nodes.squeeze(scores, [1]), [-1, queries, 0])
            else:
                scores = self.nodes.reshape(scores, [0, heads, queries, 0])
        bias = site.keys.shift.reshape(heads, -1, 1)
        if self.parts.uniform or not bias.any():
            return scores
        query = self._apart(self.parts.query, bias.shape[1])
        return self._node("Add", scores, self._joined(self._by_head(query, bias, "key_bias"), 1))

    def _keys(self) -> Array:
        """Wk' of each head, (H, E, D)."""
        return head_weights(self.site.keys, self.parts.heads).transpose(0, 2, 1)

    def _asked(self) -> ir.Value:
        """q Wk', (batch, 1, heads * queries, features)."""
        site, heads, queries = self.site, self.parts.heads, self.parts.queries
        if site.query is None:
            keys = self._keys()
            asked = self._by_head(self._apart(self.parts.query, keys.shape[1]), keys, "keys")
            return self.nodes.reshape(asked, [-1, 1, self.rows, site.features])
        asked = self._query_keys()
        if queries > 1:
            asked = self.nodes.reshape(asked, [-1, queries, heads, site.features])
            asked = self.nodes.transpose(asked, [0, 2, 1, 3])
        return self.nodes.reshape(asked, [-1, 1, self.rows, site.features])

    def _query_keys(self) -> ir.Value:
        """q Wk' of all heads, (batch, queries, heads * features)."""
        query, heads = self.site.query, self.parts.heads
        if query is None:
            raise Refused(self.parts.query.name or "", "MatMul", "expected queries that merge with the keys")
        weight = head_weights(query, heads) @ self._keys()  # (H, D of the query, D)
        bias = (query.shift.reshape(heads, 1, -1) @ self._keys()).ravel()
        joined = weight.transpose(1, 0, 2).reshape(weight.shape[1], -1)
        asked = self._node("MatMul", query.tokens, self._constant(joined, "query_keys"))
        return self._node("Add", asked, self._constant(bias, "query_keys_bias")) if bias.any() else asked

    def _pooled(self, weights: ir.Value) -> ir.Value:
        """(A X) Wv + (A 1) bv, as the original's heads or, behind the projection, (batch, queries, columns)."""
        site, heads, queries = self.site, self.parts.heads, self.parts.queries
        if self.parts.joined:
            flat = self.nodes.unsqueeze(self.nodes.reshape(weights, [-1, self.rows, 0]), [1])
        else:
            flat = self.nodes.reshape(weights, [0, 1, self.rows, 0])
        pooled = self._node("MatMul", flat, self.alone)  # (B, 1, H Q, D)
        if site.output is not None:
            if queries > 1:
                pooled = self.nodes.reshape(pooled, [-1, heads, queries, site.features])
                pooled = self.nodes.transpose(pooled, [0, 2, 1, 3])
            return self._projected(self.nodes.reshape(pooled, [-1, queries, heads * site.features]))
        pooled = self.nodes.reshape(pooled, [-1, heads, queries, site.features])
        pooled = self._by_head(pooled, head_weights(site.values, heads), "values")
        bias = site.values.shift.reshape(heads, 1, -1)
        wide = bias.shape[2]
        if not bias.any():
            return self._joined(pooled, wide)
        if not self.parts.guarded:
            return self._joined(self._node("Add", pooled, self._value_bias(bias, "value_bias")), wide)
        added = self._constant(bias, "value_bias")
        # Of an empty batch ONNX Runtime's sum keeps all keys: the Gather takes the sum, and none of nothing.
        shares = self.nodes.gather(self.nodes.sum(weights, -1, keepdims=1), self.nodes.integers([0]), axis=-1)
        return self._joined(self._node("Add", pooled, self._node("Mul", self._apart(shares, 1), added)), wide)

    def _by_head(self, value: ir.Value, weights: Array, name: str) -> ir.Value:
        """(B, H, Q, D) by (H, D, E) of the heads, which come first: ONNX Runtime broadcasts no empty batch."""
        heads, width, columns = weights.shape
        factor = self._constant(weights, name)
        first = self.nodes.transpose(value, [1, 0, 2, 3])
        flat = self.nodes.reshape(first, [heads, -1, width])
        made = self.nodes.reshape(self._node("MatMul", flat, factor), [heads, -1, self.parts.queries, columns])
        return self.nodes.transpose(made, [1, 0, 2, 3])

    def _projected(self, pooled: ir.Value) -> ir.Value:
        """sum_h (A_h X) (Wv_h Wo_h) + bv Wo, of (batch, queries, heads * D)."""
        site, heads, product = self.site, self.parts.heads, self.site.output
        if product is None:
            raise Refused(self.parts.pooled.name or "", "MatMul", "expected the projection that merges with the values")
        output = weight_of(product)
        weight = head_weights(site.values, heads) @ output.reshape(heads, -1, output.shape[1])  # (H, D, columns)
        made = self._node("MatMul", pooled, self._constant(weight.reshape(-1, output.shape[1]), "values_output"))
        bias: Array = site.values.shift.ravel() @ output
        if not bias.any() or (not self.parts.tokenless and self.constants.add_to_bias(product.outputs[0], bias)):
            return made
        return self._node("Add", made, self._value_bias(bias, "values_output_bias"))

    def _value_bias(self, bias: Array, name: str) -> ir.Value:
        """(A 1) bias: without a token nothing."""
        added = self._constant(bias, name)
        if not self.parts.tokenless:
            return added
        some = self.nodes.cast(self.nodes.sizes(self.tokens, [1]), BOOL)
        return self._node("Mul", self.nodes.cast(some, self.tokens.dtype or ir.DataType.FLOAT), added)

    @cached_property
    def alone(self) -> ir.Value:
        """The tokens (B, 1, N, D): their sizes can be copied, where a -1 would need elements."""
        return self.nodes.unsqueeze(self.tokens, [1])

    def _node(self, operator: str, *inputs: ir.Value, **attributes: int) -> ir.Value:
        return self.nodes.add(operator, inputs, self.tokens.dtype, attributes)

    def _constant(self, array: Array, name: str) -> ir.Value:
        return self.constants.add(array, f"{self.parts.pooled.name}_{name}", self.tokens.dtype)
