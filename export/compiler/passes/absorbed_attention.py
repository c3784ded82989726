"""Builds the attention that has absorbed its projections: its keys and values are the tokens themselves.

In: the plan of `absorption_plan`. Out: the new nodes, in place of the attention. `absorb_queries` has the equations.
Shapes in comments: B batch, H heads, Q queries, N tokens, D features of a token, E features of a head.

There are two forms. The plain form needs that nothing stands between scores and weights but the Softmax: its rows keep
the order (query, head), in which the products need no Transpose. The general form replaces the scores and the pooled
values each in their own place, so that a mask or a bias between them stays. Scores of keys that stay are not replaced.
"""

from __future__ import annotations

from functools import cached_property

import onnx_ir as ir

from export.compiler.analyses.absorption_plan import AbsorptionPlan, Output, head_weights
from export.compiler.analyses.projections import Channels
from export.compiler.graph.attributes import given
from export.compiler.graph.constants import Array, Constants
from export.compiler.graph.def_use import made_of
from export.compiler.graph.node_builder import BOOL, Nodes
from export.compiler.graph.symbolic_shapes import same


class Absorber:
    """Call `run` once."""

    def __init__(self, graph: ir.Graph, plan: AbsorptionPlan) -> None:
        self.graph, self.plan, self.parts, self.constants = graph, plan, plan.parts, Constants(graph)
        self.nodes = Nodes(self.constants, self.parts.pooled.name or "", graph.append)
        self.tokens = plan.values.three_axes(self.nodes)
        self.weights = given(next(use.node for use in self.parts.value.uses() if use.node in self.parts.readers), 0)
        # Where Q is free it is computed, and -1 stands for B: ONNX Runtime may write a computed size as -1 otherwise.
        self.batch = 0 if isinstance(self.parts.queries, int) else -1

    def run(self) -> None:
        """Adds the new nodes at the end of the graph; the caller removes unused nodes and sorts the graph."""
        keys, query, scores = self.plan.keys, self.plan.query, self.parts.scores
        old = self.parts.pooled if self.plan.output is None else self.plan.output.product.outputs[0]
        if keys is None or scores is None:
            new = self._pooled(self.weights)
        elif query is not None and self._is_plain(scores, self.weights):
            new = self._plain(keys, query, self.weights)
        else:
            ir.convenience.replace_all_uses_with(scores.outputs[0], self._scores(keys, given(scores, 0)))
            new = self._pooled(self.weights)
        self.constants.replace(old, new, "absorbed")

    def _is_plain(self, scores: ir.Node, weights: ir.Value) -> bool:
        """Whether the plain form applies.

        The projections of queries and keys must merge, only the Softmax stand between the products, and no node
        depend on the order of the rows: the output projection merges, too, or there is one query.
        """
        is_between = made_of(weights, "Softmax") is scores.outputs[0]
        return is_between and (self.plan.output is not None or same(self.parts.queries, 1))

    def _plain(self, keys: Channels, query: Channels, weights: ir.Value) -> ir.Value:
        """The plain form: a Reshape alone turns the queries (B, Q, H D) into the rows (B, Q H, D)."""
        plan, width = self.plan, self.parts.heads * self.plan.features
        if plan.shared_queries is not None:
            weight = (plan.shared_queries @ self._keys(keys)).transpose(2, 1, 0).reshape(len(keys.weight), -1)
            scores = self.nodes.add("MatMul", [self._key_tokens(keys), self._constant(weight, "asked")])  # (B, N, Q H)
            scores = self.nodes.transpose(scores, [0, 2, 1])
        else:
            rows = self.nodes.reshape(
                self._query_keys(keys, query), [self.batch, self.rows, len(keys.weight)]
            )  # (B, Q H, D)
            scores = self.nodes.add("MatMul", [rows, self.nodes.transpose(self._key_tokens(keys), [0, 2, 1])])
        pooled = self.nodes.add("MatMul", [self.nodes.add("Softmax", [scores], axis=2), self.tokens])  # (B, Q H, D)
        if plan.output is not None:
            return self._projected(self.nodes.reshape(pooled, [self.batch, self.queries, width]), plan.output)
        return self._values(self.nodes.reshape(pooled, [0, self.parts.heads, 1, plan.features]), weights)

    def _key_tokens(self, keys: Channels) -> ir.Value:
        """The tokens of the keys, (B, N, D)."""
        return self.tokens if keys.tokens is self.plan.values.tokens else keys.three_axes(self.nodes)

    @cached_property
    def queries(self) -> int | ir.Value:
        """Q: a number, or of free Q a vector of length 1."""
        if isinstance(self.parts.queries, int):
            return self.parts.queries
        if (query := self.plan.query) is not None:  # the projected queries are not computed
            return self.nodes.sizes(query.tokens, [0 if query.turned else -2])
        rows = (
            given(self.parts.scores, 0)
            if self.plan.keys is not None and self.parts.scores is not None
            else self.weights
        )
        return self.nodes.sizes(rows, [-2])

    @cached_property
    def rows(self) -> int | ir.Value:
        """H Q, as `queries`."""
        if isinstance(self.queries, int):
            return self.parts.heads * self.queries
        return self.nodes.add("Mul", [self.queries, self.nodes.integers([self.parts.heads])])

    def _texts(self, rows: int = 1) -> int | ir.Value:
        """The size of an axis of `rows` for each text, beside that of tokens, without which a Reshape fails on -1."""
        if not self.parts.tokenless:
            return -1
        return self.nodes.add("Mul", [self.nodes.sizes(self.tokens, [0]), self.nodes.integers([rows])])

    def _with_original_axes(self, value: ir.Value, width: int) -> ir.Value:
        """(B, H, Q, width), or (B H, Q, width) where the original joins batch and heads."""
        return self.nodes.reshape(value, [-1, self.queries, width]) if self.parts.joined else value

    def _with_head_axis(self, value: ir.Value, width: int) -> ir.Value:
        """A value of the original as (B, H, Q, width)."""
        sizes = -1, self.parts.heads, self.queries, width
        return self.nodes.reshape(value, sizes) if self.parts.joined else value

    def _scores(self, keys: Channels, asked: ir.Value) -> ir.Value:
        """(q Wk') X' + q bk', (B, H, Q, N) or (B H, Q, N); without q bk' where the softmax ignores it."""
        plan, heads, queries = self.plan, self.parts.heads, self.queries
        if plan.shared_queries is not None:
            weight = (plan.shared_queries @ self._keys(keys)).reshape(-1, len(keys.weight)).T
            scores = self.nodes.add("MatMul", [self._key_tokens(keys), self._constant(weight, "asked")])  # (B, N, H Q)
            if self.parts.joined:
                scores = self.nodes.transpose(scores, [0, 2, 1])
                scores = self.nodes.reshape(scores, [self._texts(heads), queries, 0])
            else:
                scores = self.nodes.reshape(scores, [0, 0, heads, queries])
                scores = self.nodes.transpose(scores, [0, 2, 3, 1])
        else:
            tokens = self._key_tokens(keys)
            tokens_4d = self.tokens_4d if tokens is self.tokens else self.nodes.unsqueeze(tokens, [1])
            rows = self._query_rows(keys, asked)
            scores = self.nodes.add("MatMul", [rows, self.nodes.transpose(tokens_4d, [0, 1, 3, 2])])
            if self.parts.joined:
                scores = self.nodes.reshape(self.nodes.squeeze(scores, [1]), [self._texts(heads), queries, 0])
            else:
                scores = self.nodes.reshape(scores, [self.batch, heads, queries, 0])
        bias = keys.shift.reshape(heads, -1, 1)
        if self.parts.uniform or not bias.any():
            return scores
        query = self._with_head_axis(asked, bias.shape[1])
        return self.nodes.add("Add", [scores, self._with_original_axes(self._by_head(query, bias, "key_bias"), 1)])

    def _keys(self, keys: Channels) -> Array:
        """Wk' of every head, (H, E, D)."""
        return head_weights(keys, self.parts.heads).transpose(0, 2, 1)

    def _query_rows(self, keys: Channels, asked: ir.Value) -> ir.Value:
        """q Wk' with its rows in the order (head, query), (B, 1, H Q, D)."""
        plan, heads, features = self.plan, self.parts.heads, len(keys.weight)
        if plan.query is None:
            weights = self._keys(keys)
            rows = self._by_head(self._with_head_axis(asked, weights.shape[1]), weights, "keys")
        else:
            rows = self._query_keys(keys, plan.query)
            if not same(self.parts.queries, 1):
                rows = self.nodes.reshape(rows, [-1, self.queries, heads, features])
                rows = self.nodes.transpose(rows, [0, 2, 1, 3])
        return self.nodes.reshape(rows, [-1, 1, self.rows, features])

    def _query_keys(self, keys: Channels, query: Channels) -> ir.Value:
        """q Wk' of all heads, by the merged weight Wq Wk', (B, Q, H D)."""
        heads = self.parts.heads
        weight = head_weights(query, heads) @ self._keys(keys)  # (H, D of the query, D of the keys)
        bias = (query.shift.reshape(heads, 1, -1) @ self._keys(keys)).ravel()
        joined = weight.transpose(1, 0, 2).reshape(weight.shape[1], -1)
        product = self.nodes.add("MatMul", [query.three_axes(self.nodes), self._constant(joined, "query_keys")])
        return self.nodes.add("Add", [product, self._constant(bias, "query_keys_bias")]) if bias.any() else product

    def _pooled(self, weights: ir.Value) -> ir.Value:
        """(A X) Wv + (A 1) bv with the axes of the original's heads; behind the output projection (B, Q, columns)."""
        plan, heads, queries = self.plan, self.parts.heads, self.queries
        if self.parts.joined:
            flat = self.nodes.unsqueeze(self.nodes.reshape(weights, [self._texts(), self.rows, 0]), [1])
        else:
            flat = self.nodes.reshape(weights, [self.batch, 1, self.rows, 0])
        pooled = self.nodes.add("MatMul", [flat, self.tokens_4d])  # (B, 1, H Q, D)
        if plan.output is not None:
            if not same(self.parts.queries, 1):
                pooled = self.nodes.reshape(pooled, [-1, heads, queries, plan.features])
                pooled = self.nodes.transpose(pooled, [0, 2, 1, 3])
            return self._projected(self.nodes.reshape(pooled, [-1, queries, heads * plan.features]), plan.output)
        return self._values(self.nodes.reshape(pooled, [-1, heads, queries, plan.features]), weights)

    def _values(self, pooled: ir.Value, weights: ir.Value) -> ir.Value:
        """(A X) Wv + (A 1) bv with the axes of the original's heads, of A X (B, H, Q, D)."""
        plan, heads = self.plan, self.parts.heads
        values = self._by_head(pooled, head_weights(plan.values, heads), "values")
        bias = plan.values.shift.reshape(heads, 1, -1)
        if bias.any():
            values = self.nodes.add("Add", [values, self._weighted_bias(weights, bias)])
        return self._with_original_axes(values, bias.shape[2])

    def _weighted_bias(self, weights: ir.Value, bias: Array) -> ir.Value:
        """(A 1) bv, (H, 1, E) or (B, H, Q, E)."""
        if not self.parts.guarded:
            return self._value_bias(bias, "value_bias")
        constant = self._constant(bias, "value_bias")
        # For an empty batch ONNX Runtime's sum over the keys keeps their axis as it is. The Gather makes its size 1.
        sums = self.nodes.gather(self.nodes.sum(weights, -1, keepdims=1), self.nodes.integers([0]), axis=-1)
        return self.nodes.add("Mul", [self._with_head_axis(sums, 1), constant])

    def _by_head(self, value: ir.Value, weights: Array, name: str) -> ir.Value:
        """Multiplies every head by its weight: (B, H, Q, D) by (H, D, E) -> (B, H, Q, E).

        The heads come first meanwhile, and B and Q are one axis: ONNX Runtime broadcasts no empty batch.
        """
        heads, width, columns = weights.shape
        factor = self._constant(weights, name)
        flat = self.nodes.reshape(self.nodes.transpose(value, [1, 0, 2, 3]), [heads, -1, width])
        product = self.nodes.reshape(self.nodes.add("MatMul", [flat, factor]), [heads, -1, self.queries, columns])
        return self.nodes.transpose(product, [1, 0, 2, 3])

    def _projected(self, pooled: ir.Value, output: Output) -> ir.Value:
        """sum_h (A_h X) (Wv_h Wo_h) + bv Wo: (B, Q, H D) -> (B, Q, columns), with the axes of the original."""
        heads, values, columns = self.parts.heads, self.plan.values, output.columns
        weight = head_weights(values, heads) @ output.weight.reshape(heads, -1, columns)  # (H, D, columns)
        merged = self._constant(weight.reshape(-1, columns), "values_output")
        sum_of_heads = output.with_axes(self.nodes, self.nodes.add("MatMul", [pooled, merged]))
        bias: Array = values.shift.ravel() @ output.weight
        old = output.product.outputs[0]
        if not bias.any() or (not self.parts.tokenless and self.constants.add_to_bias(old, bias)):
            return sum_of_heads
        return self.nodes.add("Add", [sum_of_heads, self._value_bias(bias, "values_output_bias")])

    def _value_bias(self, bias: Array, name: str) -> ir.Value:
        """(A 1) bias without a guard: the bias, times 0 where there is no token."""
        constant = self._constant(bias, name)
        if not self.parts.tokenless:
            return constant
        has_tokens = self.nodes.cast(self.nodes.sizes(self.tokens, [1]), BOOL)
        return self.nodes.add("Mul", [self.nodes.cast(has_tokens, self.tokens.dtype or ir.DataType.FLOAT), constant])

    @cached_property
    def tokens_4d(self) -> ir.Value:
        """The tokens (B, 1, N, D). Reshapes can copy their batch, even an empty one, where -1 would need elements."""
        return self.nodes.unsqueeze(self.tokens, [1])

    def _constant(self, array: Array, name: str) -> ir.Value:
        return self.constants.add(array, f"{self.parts.pooled.name}_{name}", self.tokens.dtype)
