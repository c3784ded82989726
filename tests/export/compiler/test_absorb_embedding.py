"""Patches as keys and values of a constant query: equal answers in double, refusals, a planted fault."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx_ir as ir
import pytest
from foreign_networks import apart, parse

from export.compiler.analyses.patch_embedding import PatchEmbedding
from export.compiler.graph.symbolic_shapes import Shapes
from export.compiler.passes import absorb_embedding
from export.compiler.pipeline import Rewritten, optimise

ATTENTION = """s = MatMul(t, query) u = Transpose<perm = [0, 2, 1]>(s) p = Softmax<axis = -1>(u)
    r = MatMul(p, t) j = Reshape(r, joined) o = MatMul(j, values)"""
ROW = f"{ATTENTION} g = Gather<axis = 1>(t, first) y = Add(o, g)"
BIAS = "f = Add(e, row) c = Concat<axis = 1>(shared, f) t = Add(wide, c)"
ABSORBED = {
    "class token first": f"c = Concat<axis = 1>(shared, e) t = Add(c, wide) {ROW}",
    "class token last": f"c = Concat<axis = 1>(e, shared) t = Add(c, wide) {ATTENTION} y = Relu(o)",
    "two tokens": f"c = Concat<axis = 1>(shared, e, shared) t = Add(c, twice) {ROW}",
    "no class token": f"t = Add(e, table) {ATTENTION} y = Relu(o)",
    "a bias": f"{BIAS} {ROW}",
}
STAYS = [
    (f"{BIAS} {ATTENTION} z = Relu(t) k = ReduceSum(z, one) y = Add(o, k)", "t (Relu): reads the tokens, too"),
    (f"{BIAS} {ATTENTION} z = ReduceSum(p, one) k = ReduceSum(z, last) y = Add(o, k)", "expected one reader, found 2"),
    (
        f"c = Concat<axis = 1>(shared, e) d = Relu(c) t = Add(d, wide) {ATTENTION} y = Relu(o)",
        "d (Relu): makes the tokens",
    ),
    (f"{BIAS} {ATTENTION.replace('(t, query)', '(c, query)')} y = Relu(o)", "expected weights by the tokens"),
]
SHAPES = [(3, 4, 6), (1, 4, 6)]


def network(nodes: str, features: int = 16) -> ir.Model:
    rng = np.random.default_rng(0)

    shapes = {"cls": (1, 1, features), "w": (6, features), "row": (features,), "table": (1, 4, features)}
    shapes |= {
        "wide": (1, 5, features),
        "twice": (6, features),
        "query": (features, 2),
        "values": (2 * features, features),
    }
    drawn = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    drawn["query"] /= 4
    integers = {"one": [1], "first": [0], "last": [2], "wide_size": [features], "joined": [0, 1, 2 * features]}
    head = """<ir_version: 8, opset_import: ["": 18]> g (float[b, 4, 6] x) => (float y) {
        sizes = Shape<start = 0, end = 1>(x) token = Concat<axis = 0>(sizes, one, wide_size) shared = Expand(cls, token)
        e = MatMul(x, w)"""
    return parse(f"{head} {nodes} }}", **drawn, **integers)


def absorbed(original: ir.Model) -> Rewritten:
    return optimise(original, passes=["absorb-embedding"])


@pytest.mark.parametrize("nodes", ABSORBED.values(), ids=ABSORBED)
def test_the_embedding_is_absorbed_and_a_wrong_table_is_found(nodes: str, monkeypatch: pytest.MonkeyPatch) -> None:
    original, right = network(nodes), absorb_embedding.patch_embedding
    done = absorbed(original)
    assert done.steps[0].macs < done.macs
    assert apart(original, done.model, *SHAPES) < 1e-13

    def wrong(shapes: Shapes, tokens: ir.Value) -> PatchEmbedding:
        made = right(shapes, tokens)
        return replace(made, table=1.01 * made.table)

    monkeypatch.setattr(absorb_embedding, "patch_embedding", wrong)
    assert apart(original, absorbed(original).model, *SHAPES) > 1e-4


@pytest.mark.parametrize(("nodes", "reason"), STAYS)
def test_an_attention_that_cannot_read_patches_is_named(nodes: str, reason: str) -> None:
    done = absorbed(network(nodes))
    assert reason in done.steps[0].left_out
    assert done.steps[0].macs == done.macs


def test_an_embedding_whose_absorption_costs_more_stays() -> None:
    done = absorbed(network(ABSORBED["no class token"], features=2))
    assert done.steps[0].left_out == "p (Softmax): absorbed: 136 MACs, not 88"
