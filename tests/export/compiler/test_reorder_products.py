"""Weights of queries and output that few keys take: equal answers at any size, what is left alone, a planted fault."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from foreign_networks import check_random, parse

from export.compiler.passes import reorder_products
from export.compiler.pipeline import Rewritten, optimise

PASSES = ["reorder-products", "tidy"]
QUERIES = "pq = MatMul(x, wq) aq = Add(pq, bq) hq = Reshape(aq, by_head) q = Transpose<perm = [0, 2, 1, 3]>(hq)"
KEYS = "pk = MatMul(z, wk) hk = Reshape(pk, by_head) k = Transpose<perm = [0, 2, 3, 1]>(hk)"
VALUES = "pv = MatMul(z, wv) av = Add(pv, bv) hv = Reshape(av, by_head) v = Transpose<perm = [0, 2, 1, 3]>(hv)"
SOFTMAX = "s = MatMul(q, k) a = Softmax<axis = -1>(s)"
OUTPUT = "o = MatMul(a, v) t = Transpose<perm = [0, 2, 1, 3]>(o) j = Reshape(t, joined) y = MatMul(j, wo)"
ATTENTION = f"{QUERIES} {KEYS} {VALUES} {SOFTMAX} {OUTPUT}"
ONE_HEAD = "u = Unsqueeze(pk, one) k = Transpose<perm = [0, 1, 3, 2]>(u)"
BOTH = {
    "plain": ATTENTION,
    "queries without a bias": ATTENTION.replace("Add(pq, bq)", "Identity(pq)"),
    "a mask": ATTENTION.replace("Softmax<axis = -1>(s)", "Softmax<axis = -1>(m)").replace(
        "a =", "m = Add(s, mask) a ="
    ),
    "a scale": ATTENTION.replace("Softmax<axis = -1>(s)", "Softmax<axis = -1>(m)").replace(
        "a =", "m = Mul(s, half) a ="
    ),
    "scores that two read": ATTENTION.replace("y = M", "r = ReduceSum(s) w = M") + " y = Add(w, r)",
    "normalised keys": ATTENTION.replace("Reshape(pk,", "Reshape(nk,").replace("hk =", "nk = Tanh(pk) hk ="),
    "a single head of keys": ATTENTION.replace(KEYS, f"pk = MatMul(z, wk4) {ONE_HEAD}"),
    "queries first, as in nn.MultiheadAttention": ATTENTION.replace("[0, 2, 1, 3]>(o)", "[2, 0, 1, 3]>(o)"),
    "weights of a sigmoid": ATTENTION.replace("Softmax<axis = -1>", "Sigmoid"),
}
SIDES = {  # what stands in the way of one side, and the side that is reordered
    "queries read elsewhere": (ATTENTION.replace("y =", "w =") + " r = ReduceSum(aq) y = Add(w, r)", "the values"),
    "normalised queries": (ATTENTION.replace("Add(pq, bq)", "Tanh(pq)"), "the values"),
    "no output projection": (ATTENTION.replace("MatMul(j, wo)", "Tanh(j)"), "the keys"),
    "heads read elsewhere": (ATTENTION.replace("y =", "w =") + " r = ReduceSum(t) y = Add(w, r)", "the keys"),
}
SIZES = [(2, 40), (1, 1), (0, 40), (1, 0), (3, 50)]  # batch, queries


def network(nodes: str, queries: int | str = "q", tokens: int | str = 3, kind: str = "float") -> ir.Model:
    rng = np.random.default_rng(0)
    shapes = dict.fromkeys(("wq", "wk", "wv", "wo"), (8, 8)) | {"bq": (8,), "bv": (8,), "wk4": (8, 4)}
    weights = {name: rng.standard_normal(shape) for name, shape in shapes.items()} | {"half": np.array(0.5)}
    numpy_kind = {"float": np.float32, "float16": np.float16}[kind]
    inputs = f"{kind}[b, {queries}, 8] x, {kind}[b, {tokens}, 8] z, {kind}[1, 1, {queries}, 1] mask"
    return parse(
        f'<ir_version: 8, opset_import: ["": 17]> g ({inputs}) => ({kind} y) {{ {nodes} }}',
        **{name: array.astype(numpy_kind) for name, array in weights.items()},
        by_head=[0, 0, 2, 4],
        joined=[0, 0, 8],
        one=[1],
        one_more=[0, 1, 0, 0, 0, 0],
    )


def reordered(original: ir.Model, tokens: int = 3) -> Rewritten:
    return optimise(original, passes=PASSES, sizes={"b": 1, "q": 40, "n": tokens})


def check(original: ir.Model, done: Rewritten, batch: int, queries: int, tokens: int = 3) -> None:
    mask = (1, 1, queries, 1)
    check_random(original, done.model, x=(batch, queries, 8), z=(batch, tokens, 8), mask=mask)


@pytest.mark.parametrize("nodes", BOTH.values(), ids=BOTH)
def test_few_keys_take_both_weights_and_the_answers_stay_at_any_size(nodes: str) -> None:
    original = network(nodes)
    done = reordered(original)
    keys, values = done.steps[0].sites
    # 40 queries of 8 features, 3 tokens, 2 heads of 4: queries 40*8*8 + 40*3*8 become 3*8*8 + 40*3*2*8, output alike
    assert keys.message == "the keys take the weight of the queries, 3,520 -> 2,112 MACs"
    assert values.message == "the values take the output's weight, 3,520 -> 2,112 MACs"
    for batch, queries in SIZES:
        check(original, done, batch, queries)


def test_a_free_number_of_tokens() -> None:
    one_more = "more = Pad(z, one_more) " + ATTENTION.replace("MatMul(z,", "MatMul(more,")
    original = network(one_more, queries=40, tokens="n")
    done = reordered(original, 2)
    assert len(done.steps[0].sites) == 2
    for batch, tokens in [(2, 2), (1, 0), (0, 4), (3, 60)]:
        check(original, done, batch, 40, tokens)


def test_the_softmax_needs_no_turn() -> None:
    (softmax,) = (node for node in reordered(network(ATTENTION)).model.graph if node.op_type == "Softmax")
    neighbours = softmax.inputs[0].producer(), softmax.outputs[0].uses()[0].node
    assert [node.op_type for node in neighbours if node is not None] == ["Reshape", "Reshape"]


@pytest.mark.parametrize(("nodes", "side"), SIDES.values(), ids=SIDES)
def test_each_side_is_reordered_alone(nodes: str, side: str) -> None:
    original = network(nodes)
    done = reordered(original)
    (site,) = done.steps[0].sites
    assert site.message.startswith(side)
    for batch, queries in SIZES:
        check(original, done, batch, queries)


@pytest.mark.parametrize(
    ("original", "tokens", "reason"),
    [
        (network(ATTENTION, tokens=40), 40, "reordered it would cost 28,160 MACs, not 15,360"),
        (network(ATTENTION, kind="float16"), 3, "new products of FLOAT16 would be rounded again"),
        (network(ATTENTION, tokens="n"), 3, "expected a known number of tokens, found n"),
        (network("p = MatMul(x, wq) y = MatMul(p, wo)"), 3, "nothing of its kind"),
    ],
)
def test_what_costs_more_or_would_be_rounded_stays(original: ir.Model, tokens: int, reason: str) -> None:
    assert reason in reordered(original, tokens).steps[0].left_out


@pytest.mark.parametrize(("queries", "tokens", "applied"), [(2, 40, "absorb-queries"), (40, 3, "reorder-products")])
def test_absorption_leaves_to_this_pass_what_it_saves_more_of(queries: int, tokens: int, applied: str) -> None:
    original = network(ATTENTION, queries=queries, tokens=tokens)
    done = optimise(original, passes=["absorb-queries", *PASSES], sizes={"b": 1})
    assert applied in done.applied
    assert len({"absorb-queries", "reorder-products"} & {*done.applied}) == 1


PROMPTS = ATTENTION.replace("(aq, by_head)", "(aq, by_query)").replace(
    "j = Reshape(t, joined)", "shape = Shape(x) j = Reshape(t, shape)"
)
TWICE = PROMPTS.replace("j = Reshape(t, ", "i = Reshape(t, flat) j = Reshape(i, ")
SWAPPED = "w = Transpose<perm = [0, 2, 1, 3]>"
OF_PROMPTS = {  # batch and nodes; what two queries absorb; which sides take the weights of 40 queries
    "free sizes": ("b, p", PROMPTS, "keys and values", 2),
    "fixed sizes": ("2, 3", PROMPTS.replace("(t, shape)", "(t, joined)"), "keys and values", 2),
    "joined by two": ("b, p", TWICE, "keys and values", 2),
    "queries with a bias for each prompt": ("2, 3", PROMPTS.replace("(pq, bq)", "(pq, bp)"), "keys and values", 1),
    "values with a bias for each prompt": ("2, 3", PROMPTS.replace("(pv, bv)", "(pv, bp)"), "", 2),
    "prompts among queries": (
        "2, 3",
        PROMPTS.replace("(aq, by", "(w, by").replace("hq =", f"{SWAPPED}(aq) hq ="),
        "keys and values",
        1,
    ),
    "prompts among keys": (
        "2, 3",
        PROMPTS.replace("(pk, by", "(w, by").replace("hk =", f"{SWAPPED}(pk) hk ="),
        "values",
        2,
    ),
}


@pytest.mark.parametrize(("batch", "nodes", "absorbed", "sides"), OF_PROMPTS.values(), ids=OF_PROMPTS)
def test_images_and_prompts_are_one_batch(batch: str, nodes: str, absorbed: str, sides: int) -> None:
    """As in transformers' Segment Anything: x (images, prompts, queries, 8), z (images, prompts, tokens, 8)."""
    rng = np.random.default_rng(0)
    shapes = dict.fromkeys(("wq", "wk", "wv", "wo"), (8, 8)) | {"bq": (8,), "bv": (8,), "bp": (3, 1, 8)}
    weights = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    for queries, tokens in [(2, 40), (40, 3)]:
        inputs = f"float[{batch}, {queries}, 8] x, float[{batch}, {tokens}, 8] z"
        original = parse(
            f'<ir_version: 8, opset_import: ["": 17]> g ({inputs}) => (float y) {{ {nodes} }}',
            **weights,
            by_query=[-1, queries, 2, 4],
            by_head=[-1, tokens, 2, 4],
            joined=[-1, 3, queries, 8],
            flat=[-1, queries, 8],
        )
        done = optimise(original, passes=["absorb-queries", *PASSES])
        absorption, reordering, _ = done.steps
        if queries == 2:
            assert bool(absorption.sites) == bool(absorbed)
            assert all(f"queries absorb {absorbed}, " in site.message for site in absorption.sites)
        else:
            assert len(reordering.sites) == sides
        for images, prompts in [(2, 3), (1, 1), (0, 3)] if batch == "b, p" else [(2, 3)]:
            check_random(original, done.model, x=(images, prompts, queries, 8), z=(images, prompts, tokens, 8))


def swap_query_heads(patch: pytest.MonkeyPatch) -> None:
    right = reorder_products.head_weights
    patch.setattr(reorder_products, "head_weights", lambda query, heads: right(query, heads)[::-1])


def swap_output_features(patch: pytest.MonkeyPatch) -> None:
    right = reorder_products.output_projection

    def wrong(*given: Any) -> Any:
        output = right(*given)
        return output and replace(output, weight=np.roll(output.weight, 1, axis=0))

    patch.setattr(reorder_products, "output_projection", wrong)


@pytest.mark.parametrize("fault", [swap_query_heads, swap_output_features])
def test_a_wrong_weight_is_found(fault: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    fault(monkeypatch)
    original = network(SIDES["normalised queries"][0] if fault is swap_output_features else ATTENTION)
    with pytest.raises(AssertionError):
        check(original, reordered(original), 2, 40)
