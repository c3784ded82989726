"""Absorbs the projections of keys and values into an attention of few queries: tokens serve as its keys and values.

In: a graph with few queries, as in the last block after `read_rows`. Out: the same outputs. For a head with keys
K = X Wk + bk and values V = X Wv + bv of the tokens X (B, N, D), and attention weights A:

    q K' = (q Wk') X' + q bk'         A V = (A X) Wv + (A 1) bv

The softmax ignores q bk', which is the same for every token. A row of A sums to 1, except after a guard that sets rows
to zero, and over no token, where it sums to 0. The products grow from E to D features a head. The new factors merge
with the projections before and after them where that costs less:

    q Wk' = x (Wq Wk') + bq Wk'       sum_h A_h V_h Wo_h = sum_h (A_h X) (Wv_h Wo_h) + sum_h bv_h Wo_h

Reads a Softmax over the last axis of 3 or 4, with the MatMuls before and after it, or the operator Attention.

Refuses, by the name of the Softmax or of the node in the way: weights of another form; queries that may be none;
values that other nodes read, too (see `absorption_plan`); more multiplications, or more than by `reorder_products`.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace

import onnx_ir as ir

from export.compiler.analyses.absorption_plan import AbsorptionPlan, Parts, plan, traced
from export.compiler.analyses.attention import attention_sizes, decompose_attention, pooled_of, scores_of
from export.compiler.analyses.demand import analyse
from export.compiler.analyses.empty_axes import may_be_empty
from export.compiler.errors import Refused, Site
from export.compiler.graph.attributes import given, mixes_last_axis
from export.compiler.graph.symbolic_shapes import Shapes, same
from export.compiler.passes.absorbed_attention import Absorber
from export.compiler.passes.drop_unread import refresh
from export.compiler.passes.materialise_parts import Materialiser
from export.compiler.passes.outcome import Outcome


def absorb_queries(model: ir.Model, sizes: Mapping[str, int]) -> Outcome:
    sites: list[Site] = []
    refusals: list[Site] = []
    shapes = Shapes(model.graph, sizes)
    for node in list(model.graph):
        if node.domain or node.op_type not in ("Softmax", "Attention"):
            continue
        softmax = node
        try:
            absorption = _check(shapes, node)
            if node.op_type == "Attention":
                softmax = decompose_attention(shapes, node)
                refresh(model)
                absorption = _check(shapes, softmax)
        except Refused as refused:
            refusals.append(refused.refusal)
            continue
        Absorber(model.graph, absorption).run()
        refresh(model)  # else the next attention could seem to have a reader that is unused by now
        queries = (
            "1 query absorbs" if same(absorption.parts.queries, 1) else f"{absorption.parts.queries} queries absorb"
        )
        absorbed = "keys and values" if absorption.keys is not None else "values"
        change = f"{queries} {absorbed}, {absorption.before:,} -> {absorption.after:,} MACs"
        sites.append(Site(softmax.outputs[0].name or "", node.op_type, change))
    if sites:  # of a MatMul that made queries, keys and values, only the queries' columns are read now
        Materialiser(shapes, analyse(shapes)[0]).run()
    return Outcome(tuple(sites), tuple(refusals))


def _check(shapes: Shapes, node: ir.Node) -> AbsorptionPlan:
    """The plan for a Softmax or Attention. Raises Refused if absorption is impossible or costs more.

    A free number of queries may be larger than it is counted: absorption must then cost less for twice as many, too.
    """
    parts = _parts_of_operator(shapes, node) if node.op_type == "Attention" else _parts(shapes, node)
    is_free = not isinstance(parts.queries, int)
    if is_free and (parts.tokenless or may_be_empty(shapes, parts.queries)):
        raise Refused.at(node, f"expected a known number of queries, found {parts.queries}")
    for counted in (2 * parts.counted, parts.counted) if is_free else (parts.counted,):
        absorption = plan(shapes, replace(parts, counted=counted))
        at = f" for {counted} queries" if is_free else ""
        reason = f"absorbed{at} it would cost {absorption.after:,} MACs"
        if absorption.after >= absorption.before:
            raise Refused.at(node, f"{reason}, not {absorption.before:,}")
        if absorption.reordered < absorption.after:
            raise Refused.at(node, f"{reason}, by reorder-products {absorption.reordered:,}")
    return absorption


def _parts(shapes: Shapes, softmax: ir.Node) -> Parts:
    """The parts of an attention in single operators, from its Softmax. Raises Refused."""
    rank = shapes.rank(softmax.outputs[0])
    if rank not in (3, 4) or not mixes_last_axis(softmax, rank):
        raise Refused.at(softmax, "expected scores (batch, heads, queries, tokens)")
    pooled, guarded = pooled_of(shapes, softmax.outputs[0])
    value, dims = given(pooled, 1), shapes.dims(given(pooled, 0))
    (queries, tokens), joined = dims[-2:], len(dims) == 3
    scores, uniform = None, True
    if len(dims) == rank:  # else heads are apart in the scores
        with suppress(Refused):
            scores, uniform = scores_of(shapes, softmax)
    heads = traced(shapes, value, None, 2).columns.shape[1] if joined else dims[1]
    if not isinstance(heads, int):
        raise Refused.at(softmax, f"expected a known number of heads, found {heads}")
    if scores is None and not same(dims[0], shapes.dims(value)[0]):
        raise Refused.at(softmax, "expected weights for each text")
    readers = frozenset({pooled} if scores is None else {scores, pooled})
    tokenless = may_be_empty(shapes, tokens)
    counts = heads, queries, tokens, shapes.nominal(queries)
    return Parts(scores, value, pooled.outputs[0], readers, 3, *counts, guarded, uniform, joined, tokenless)


def _parts_of_operator(shapes: Shapes, node: ir.Node) -> Parts:
    """The same of the operator Attention."""
    heads, queries, tokens = attention_sizes(shapes, node)
    counts = heads, queries, tokens, shapes.nominal(queries)
    return Parts(node, given(node, 2), node.outputs[0], frozenset({node}), 2, *counts)
