"""An attention absorbs the projections of its keys and values, where that saves multiplications.

In: a graph, after `read_rows` with few queries in its last block. Out: the same outputs. For a head with keys
K = X Wk + bk and values V = X Wv + bv of the tokens X (B, N, D), and the softmax A over the tokens:

    q K' = (q Wk') X' + q bk'         A V = (A X) Wv + (A 1) bv

The softmax ignores q bk', the same for every token. A 1 = 1, except after a guard that sets a row to zero, and over no
token, where A 1 = 0. The products grow from E to D features a head. The new factors merge with their neighbours where
that costs less:

    q Wk' = x (Wq Wk') + bq Wk'       sum_h A_h V_h Wo_h = sum_h (A_h X) (Wv_h Wo_h) + sum_h bv_h Wo_h
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from export.compiler.analyses.absorption_plan import AbsorptionPlan, Parts, plan, traced
from export.compiler.analyses.attention import attention_sizes, decompose_attention, pooled_of, scores_of
from export.compiler.analyses.demand import analyse
from export.compiler.analyses.empty_axes import may_be_empty
from export.compiler.errors import Refused, Site
from export.compiler.graph.attributes import given, mixed_axes
from export.compiler.graph.shapes import Shapes
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
            site = _check(shapes, node)
            if node.op_type == "Attention":
                softmax = decompose_attention(shapes, node)
                refresh(model)
                site = _check(shapes, softmax)
        except Refused as refused:
            refusals.append(refused.refusal)
            continue
        Absorber(model.graph, site).run()
        refresh(model)  # the next attention may be read by what is now unread
        queries = "1 query absorbs" if site.parts.queries == 1 else f"{site.parts.queries} queries absorb"
        change = f"{queries} keys and values, {site.before:,} -> {site.after:,} MACs"
        sites.append(Site(softmax.outputs[0].name or "", node.op_type, change))
    if sites:
        Materialiser(shapes, analyse(shapes)).run()  # cuts columns of keys and values off a MatMul with the queries'
    return Outcome(tuple(sites), tuple(refusals))


def _check(shapes: Shapes, node: ir.Node) -> AbsorptionPlan:
    """Raises Refused if absorption costs more."""
    site = plan(shapes, _parts_of_operator(shapes, node) if node.op_type == "Attention" else _parts(shapes, node))
    if site.after >= site.before:
        reason = f"absorbed it would cost {site.after:,} MACs, not {site.before:,}"
        raise Refused.at(node, reason)
    return site


def _parts(shapes: Shapes, softmax: ir.Node) -> Parts:
    dims = shapes.dims(softmax.outputs[0])
    rank, joined = len(dims), len(dims) == 3
    if rank not in (3, 4) or mixed_axes(softmax, rank) != range(rank - 1, rank):
        raise Refused.at(softmax, "expected scores (batch, heads, queries, tokens)")
    queries, tokens = dims[-2:]
    scores, uniform = scores_of(shapes, softmax)
    pooled, _, guarded = pooled_of(softmax.outputs[0])
    values = given(scores, 0), given(scores, 1), given(pooled, 1), pooled.outputs[0]
    heads = traced(shapes, values[1], None, 3).columns.shape[1] if joined else dims[1]
    if not isinstance(heads, int) or not isinstance(queries, int):
        raise Refused.at(softmax, f"expected a known number of queries, found {queries}")
    readers = frozenset({scores, pooled})
    tokenless = may_be_empty(shapes, tokens)
    return Parts(*values, readers, 3, heads, queries, tokens, guarded, uniform, joined, tokenless)


def _parts_of_operator(shapes: Shapes, node: ir.Node) -> Parts:
    values = given(node, 0), given(node, 1), given(node, 2), node.outputs[0]
    return Parts(*values, frozenset({node}), 2, *attention_sizes(shapes, node))
