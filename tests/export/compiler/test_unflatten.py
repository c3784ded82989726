"""Linear layers on flattened tokens, as exporters write those of GPT-2 and OPT."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from foreign_networks import answers, parse, proved

from export.compiler.errors import NothingToRewrite
from export.compiler.operators.evaluate import evaluate
from export.compiler.pipeline import Rewritten, optimise, rewrite

WIDTH, HEADS = 6, 2
LINEAR = "f = Reshape(x, flat) g = Gemm(f, w, c) s = Shape(x) y = Reshape(g, s)"
RNG = np.random.default_rng(0)
WEIGHTS: dict[str, Any] = {
    "w": RNG.standard_normal((WIDTH, WIDTH)).astype(np.float32),
    "c": RNG.standard_normal(WIDTH).astype(np.float32),
    "rows": RNG.standard_normal((4, WIDTH)).astype(np.float32),
    "slope": RNG.standard_normal((1, WIDTH)).astype(np.float32),
    **{"flat": [-1, WIDTH], "across": [-1, 2 * WIDTH], "square": [WIDTH, -1], "both": [-1, 2, WIDTH], "six": WIDTH},
    **{"heads": [0, 0, HEADS, WIDTH // HEADS], "pairs": [2, 2, WIDTH], "zeros": [0, 1, WIDTH], "twice": [1, 2, 1]},
    **{"zero": [0], "one": [1], "first": [1], "few": [2], "last": [-1], "halves": [3, 3], "turned": [-1, 3, 2]},
    "ends": np.array([0, 1], np.float32),
    "experts": RNG.standard_normal((3, WIDTH, WIDTH)).astype(np.float32),
    "router": RNG.standard_normal((WIDTH, 3)).astype(np.float32),
    "two": np.array(2.0, np.float32),
    "eight": np.array(8, np.uint8),
    "scales": np.full(WIDTH, 0.1, np.float32),
    "eights": np.full(WIDTH, 8, np.uint8),
}


def model(nodes: str, outputs: str = "float y") -> ir.Model:
    text = f'<ir_version: 8, opset_import: ["": 18]> g (float[n, s, {WIDTH}] x) => ({outputs}) {{ {nodes} }}'
    return parse(text, **WEIGHTS)


def check_same(original: ir.Model, rewritten: Rewritten, kept: int = 0) -> None:
    """The last row of output 0, and `kept` whole outputs."""
    for batch, length in [(1, 1), (1, 4), (3, 1), (2, 5), (4, 4)]:
        x = np.random.default_rng(length).standard_normal((batch, length, WIDTH))
        before, after = evaluate(original, {"x": x}), evaluate(rewritten.model, {"x": x})
        assert len(after) == 1 + kept
        np.testing.assert_allclose(after[0], before[0][:, -1], rtol=1e-12)
        for left, right in zip(before[1:], after[1:], strict=True):
            np.testing.assert_allclose(right, left, rtol=1e-12)


LIFTED = {
    "with a bias": LINEAR,
    "with w transposed": LINEAR.replace("Gemm(f, w, c)", "Gemm<transB = 1>(f, w, c)"),
    "without a bias": LINEAR.replace("(f, w, c)", "(f, w)"),
    "with an unused beta": LINEAR.replace("Gemm(f, w, c)", "Gemm<beta = 3.0>(f, w)"),
    "two layers, residual and norm": (
        "f = Reshape(x, flat) l = LayerNormalization<axis = -1>(f, c, c) g = Gemm(l, w, c) r = Relu(g) "
        "h = Gemm(r, w, c) a = Add(f, h) k = Mul(a, slope) q = MatMul(k, w) s = Shape(x) y = Reshape(q, s)"
    ),
    "behind the heads of an attention": (
        "u = Reshape(x, heads) v = Transpose<perm = [0, 2, 1, 3]>(u) r = Relu(v) "
        "t = Transpose<perm = [0, 2, 1, 3]>(r) f = Reshape(t, flat) g = Gemm(f, w, c) s = Shape(x) y = Reshape(g, s)"
    ),
}


# As quantize_static writes OPT's linear layers.
ROUNDED = (
    "f = Reshape(x, flat) i = QuantizeLinear(f, two, eight) d = DequantizeLinear(i, two, eight) g = Gemm(d, w, c) "
    "s = Shape(x) y = Reshape(g, s)"
)


def test_a_flattened_layer_with_several_readers_is_computed_once() -> None:
    original = model(f"{LINEAR} z = Relu(g)", "float y, float z")
    with pytest.raises(
        NothingToRewrite, match=r"read-rows: y .* no multiplying operator computes more than the outputs"
    ):
        rewrite(original, ["y[:,-1]", "z"], sizes={"n": 2, "s": 10})
    more = model(f"{LINEAR.replace('y =', 'p =')} z = Relu(g) y = MatMul(p, w)", "float y, float z")
    rewritten = rewrite(more, ["y[:,-1]", "z"], sizes={"n": 2, "s": 10})
    assert rewritten.steps[-1].macs == rewritten.macs * 11 / 20
    check_same(more, rewritten, kept=1)


def routed(repeat: str, taken: str) -> str:
    """Two of three experts for each token, as transformers writes them with batched products."""
    return f"""f = Reshape(x, flat) scores = MatMul(f, router) chances = Softmax<axis = 1>(scores)
    best, which = TopK<axis = 1>(chances, few) total = ReduceSum<keepdims = 1>(best, first) shares = Div(best, total)
    apart = Unsqueeze(f, first) {repeat} number = Reshape(which, last) place = Unsqueeze(number, last) {taken}
    column = Unsqueeze(each, last) wide = MatMul(taken, column) narrow = Squeeze(wide, last)
    share = Reshape(shares, last) factor = Unsqueeze(share, last) weighted = Mul(narrow, factor)
    back = Reshape(weighted, both) joined = ReduceSum<keepdims = 0>(back, first) s = Shape(x) y = Reshape(joined, s)"""


EXPERTS = {
    "of torch's newer exporter": routed(
        "repeated = Expand(apart, twice) each = Reshape(repeated, flat)", "taken = GatherND(experts, place)"
    ),
    "of TorchScript": routed(
        "repeated = Tile(apart, twice) each = Flatten<axis = 2>(repeated)", "taken = Gather(experts, number)"
    ),
}


ROWS = {
    "the best of groups": (
        "k, i = TopK<axis = 1>(f, few) all = Shape(f) empty = ConstantOfShape(all) chosen = Shape(i) "
        "ones = ConstantOfShape<value = float[1] {1}>(chosen) "
        "m = ScatterElements<axis = 1>(empty, i, ones) g = Mul(f, m)"
    ),
    "the best": "k, i = TopK<axis = -1>(f, few) e = Gather<axis = 1>(k, zero) g = Mul(f, e)",
    "the best of all rows": "k, i = TopK<axis = 0>(f, one) g = Sub(f, k)",
    "heads": (
        "l, r = Split<axis = 1>(f, halves) j = Concat<axis = -1>(r, l) h = Reshape(j, turned) "
        "t = Transpose<perm = [0, 2, 1]>(h) v = ReduceMax<keepdims = 1, axes = [2]>(t) p = Squeeze(v, last) "
        "z = Slice(p, zero, few, first) w2 = Concat<axis = 1>(z, z, z) g = Mul(f, w2)"
    ),
    "picked": (
        "a = ArgMax<axis = 1, keepdims = 1>(f) e = GatherElements<axis = 1>(f, a) q = Squeeze(a, last) "
        "o = OneHot<axis = 1>(q, six, ends) m = Mul(o, e) d = LogSoftmax<axis = 1>(m) g = Add(f, d)"
    ),
}


BEHIND = "u = MatMul(g, w) s = Shape(x) y = Reshape(u, s)"
MOVED = {
    **{name: (nodes, 18) for name, nodes in (LIFTED | EXPERTS).items()},
    **{name: (f"f = Reshape(x, flat) {nodes} {BEHIND}", 17) for name, nodes in ROWS.items()},
    "rounded to integers": (ROUNDED, 21),
}


@pytest.mark.parametrize(("nodes", "opset"), MOVED.values(), ids=MOVED)
def test_flattened_tokens_are_computed_for_the_row_that_is_read(nodes: str, opset: int) -> None:
    original = model(nodes)
    original.opset_imports[""] = opset
    rewritten = rewrite(original, ["y[:,-1]"], sizes={"n": 2, "s": 10})
    assert rewritten.steps[-1].macs == rewritten.macs / 10
    assert not any(node.op_type == "Gemm" for node in rewritten.model.graph)
    check_same(original, rewritten)
    if "experts" in nodes:
        (nothing,) = answers(rewritten.model, {"x": np.zeros((0, 3, WIDTH), np.float32)})
        assert nothing.shape == (0, WIDTH)  # along an axis of -1 ONNX Runtime would not sum


def test_features_are_not_mistaken_for_tokens_of_the_same_number() -> None:
    """Six tokens of six features."""
    nodes = "f = Reshape(x, flat) t = Transpose<perm = [1, 0]>(f) g = MatMul(t, w) y = Reshape(g, fixed)"
    text = (
        f'<ir_version: 8, opset_import: ["": 18]> g (float[2, 3, {WIDTH}] x) => (float[2, 3, {WIDTH}] y) {{ {nodes} }}'
    )
    original = parse(text, fixed=np.array([2, 3, WIDTH]), **WEIGHTS)
    x = RNG.standard_normal((2, 3, WIDTH))
    before, after = (evaluate(each, {"x": x})[0] for each in (original, optimise(original, ["y[:,-1]"]).model))
    np.testing.assert_allclose(after, before[:, -1], rtol=1e-12)


KEPT = {
    "rows in turn": (
        "f = Reshape(x, flat) t = Transpose<perm = [1, 0]>(f) h = Reshape(t, flat) g = Gemm(h, w, c) s = Shape(x) "
        "y = Reshape(g, s)"
    ),
    "alpha": LINEAR.replace("Gemm(f, w, c)", "Gemm<alpha = 2.0>(f, w, c)"),
    "beta": LINEAR.replace("Gemm(f, w, c)", "Gemm<beta = 2.0>(f, w, c)"),
    "transA": "f = Reshape(x, square) g = Gemm<transA = 1>(f, w) s = Shape(x) y = Reshape(g, s)",
    "a bias of each row": LINEAR.replace("(f, w, c)", "(f, w, rows)"),
    "tokens joined in pairs": (
        "f = Reshape(x, across) r = Relu(f) k = Reshape(r, flat) g = Gemm(k, w, c) p = Reshape(g, across) "
        "e = Softmax<axis = 1>(p) s = Shape(x) y = Reshape(e, s)"
    ),
    "a scale of each feature": (
        "f = Reshape(x, flat) i = QuantizeLinear<axis = 1>(f, scales, eights) "
        "d = DequantizeLinear<axis = 1>(i, scales, eights) g = Gemm(d, w, c) s = Shape(x) y = Reshape(g, s)"
    ),
    "rows mixed": LINEAR.replace("g = ", "e = Softmax<axis = 0>(f) g = ").replace("(f, w, c)", "(e, w, c)"),
    "all rows normed together": (
        "f = Reshape(x, flat) l = LayerNormalization<axis = 0>(f, two) g = Gemm(l, w, c) s = Shape(x) y = Reshape(g, s)"
    ),
}


@pytest.mark.parametrize("nodes", KEPT.values(), ids=KEPT)
def test_a_layer_that_is_no_product_of_rows_stays(nodes: str) -> None:
    with pytest.raises(
        NothingToRewrite, match=r"\(Reshape\): the part that is read, -1 of axis 1, is not computed alone"
    ):
        rewrite(model(nodes), ["y[:,-1]"], sizes={"n": 2, "s": 10})


@pytest.mark.parametrize("made", ["made = MatMul(x, w)", "product = MatMul(x, w) made = Relu(product)"])
def test_a_norm_of_flat_rows_becomes_one_of_tokens_whether_it_folds_or_not(made: str) -> None:
    """As LeViT writes each linear layer: a product, flat rows for BatchNorm, heads."""
    rng = np.random.default_rng(0)
    original = parse(
        f"""<ir_version: 8, opset_import: ["": 17]> g (float[b, n, 4] x) => (float[b, 4] y) {{
            {made} flat = Reshape(made, rows)
            normed = BatchNormalization(flat, scale, shift, mean, variance) lengths = Shape<end = 2>(x)
            sizes = Concat<axis = 0>(lengths, halves) heads = Reshape(normed, sizes)
            row = Gather<axis = 1>(heads, first)
            y = Reshape(row, rows) }}""",
        rows=np.array([-1, 4]),
        first=np.array(0),
        halves=np.array([2, 2]),
        w=rng.standard_normal((4, 4)).astype(np.float32),
        **{name: (rng.random(4) + 0.5).astype(np.float32) for name in ("scale", "shift", "mean", "variance")},
    )
    rewritten = rewrite(original, sizes={"b": 1, "n": 24})
    assert rewritten.steps[-1].macs * 24 == rewritten.macs
    assert proved(original, rewritten.model).error < 1e-13


def numbered(nodes: str, sizes: str) -> ir.Model:
    text = f'<ir_version: 8, opset_import: ["": 18]> g (int64[{sizes}] i) => (float y) {{ {nodes} }}'
    return parse(text, line=np.array([-1]), wide=np.array([WIDTH]), **WEIGHTS)


def check_numbers(original: ir.Model, rewritten: Rewritten, texts: int, tokens: int) -> None:
    feeds = {"i": np.random.default_rng(0).integers(0, 4, (texts, tokens))}
    before, after = evaluate(original, feeds)[0], evaluate(rewritten.model, feeds)[0]
    np.testing.assert_allclose(after, before[:, -1], rtol=1e-12)


def test_rows_gathered_from_a_table_for_every_token_are_unflattened() -> None:
    """As M2M100 writes positions."""
    nodes = "f = Reshape(i, line) e = Gather(rows, f) g = MatMul(e, w) l = Shape(i) s = Concat<axis = 0>(l, wide)"
    original = numbered(f"{nodes} y = Reshape(g, s)", "n, s")
    rewritten = rewrite(original, ["y[:,-1]"], sizes={"n": 2, "s": 10})
    assert rewritten.steps[-1].macs == rewritten.macs / 10
    for texts, tokens in [(1, 1), (1, 4), (3, 1), (2, 5)]:
        check_numbers(original, rewritten, texts, tokens)


def test_columns_gathered_from_a_table_are_not_unflattened() -> None:
    nodes = "f = Reshape(i, line) e = Gather<axis = 1>(rows, f) g = MatMul(e, w) y = Reshape(g, pairs)"
    original = numbered(nodes, "2, 3")
    check_numbers(original, rewrite(original, ["y[:,-1]"]), 2, 3)
