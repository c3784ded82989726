"""Means that are hoisted before linear operators: equal answers, the products before them cheaper, others untouched."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from foreign_networks import check_equal, parse

from export.compiler.pipeline import optimise

SIZES = {"b": 2}
MEAN = "y = ReduceMean<keepdims = {keep}>({of}, rows)"
LAYER = "h = Elu(x) m = MatMul(h, w) l = Add(m, bias) s = Mul(l, scale) r = Add(x, s)"
HOISTED = {  # nodes, and the multiply-accumulates for 2 x 6 rows of 4 features, with those products for one row
    "a layer and its residual": (f"{LAYER} {MEAN.format(of='r', keep=0)}", 2 * 16),
    "with its axis": (f"{LAYER} {MEAN.format(of='r', keep=1)}", 2 * 16),
    "only the last layer": (f"{LAYER} g = Elu(r) n = MatMul(g, w) {MEAN.format(of='n', keep=0)}", 2 * (6 + 1) * 16),
    "two layers": (f"{LAYER} n = MatMul(r, w) {MEAN.format(of='n', keep=0)}", 2 * 2 * 16),
    "an attention": (
        "k = Transpose<perm = [0, 2, 1]>(x) a = MatMul(x, k) p = Softmax(a) o = MatMul(p, x) n = MatMul(o, w) "
        + MEAN.format(of="n", keep=0),
        2 * (6 * 6 * 4 + 6 * 4 + 16),
    ),
    "taken off": (f"{LAYER} d = Sub(m, x) {MEAN.format(of='d', keep=0)}", 2 * 16),
    "of halves of the images": (
        "d = Concat<axis = 0>(x, x) n = MatMul(d, w) s2 = Reshape(n, halves) y = ReduceMean<keepdims = 0>(s2, rows2)",
        2 * 2 * 16,
    ),
    "a table": (f"n = MatMul(x, w) t = Add(n, table) {MEAN.format(of='t', keep=0)}", 2 * 16),
    "beside its shape": (f"{LAYER} s2 = Shape(r) u = ReduceMean(r, rows) y = Expand(u, s2)", 2 * 16),
    "of features": ("n = MatMul(x, w) y = ReduceMean<keepdims = 0>(n, ends)", 2 * 6 * 4),
    "of rows that are joined": (
        "q = Reshape(x, pairs) h = Elu(q) m = MatMul(h, w) r = Add(q, m) j = Reshape(r, joined) "
        + MEAN.format(of="j", keep=0),
        2 * 16,
    ),
    "of rows that are split": (
        f"{LAYER} j = Reshape(r, pairs) t = Transpose<perm = [0, 3, 2, 1]>(j) y = GlobalAveragePool(t)",
        2 * 16,
    ),
    "channels first": (
        "h = Elu(x) m = MatMul(h, w) t = Transpose<perm = [0, 2, 1]>(m) q = Unsqueeze(x, end) "
        "i = Transpose<perm = [0, 2, 1, 3]>(q) c = Conv(i, filter, bias) y = GlobalAveragePool(c)",
        2 * 16,
    ),
}
SUM = "t = ReduceSum<keepdims = {keep}>(r, rows) y = Div(t, {count})"
HOISTED |= {f"as JAX computes it, {keep}": (f"{LAYER} {SUM.format(keep=keep, count='six')}", 2 * 16) for keep in (0, 1)}
STAYS = {
    "over another number": f"{LAYER} {SUM.format(keep=0, count='five')}",
    "rows in full": f"{LAYER} {MEAN.format(of='m', keep=0)} z = Relu(m)",
    "an output": f"{LAYER} z = Identity(r) {MEAN.format(of='r', keep=0)}",
    "no product": f"h = Elu(x) r = Add(x, h) {MEAN.format(of='r', keep=0)}",
    "a norm": f"{LAYER} n = LayerNormalization(r, scale) {MEAN.format(of='n', keep=0)}",
    "products of rows": f"{LAYER} n = Mul(l, x) {MEAN.format(of='n', keep=0)}",
    "divided by rows": f"{LAYER} n = Div(bias, l) {MEAN.format(of='n', keep=0)}",
    "of some of the rows that are split": f"{LAYER} j = Reshape(r, pairs) {MEAN.format(of='j', keep=0)}",
    "a window": "i = Unsqueeze(x, end) c = Conv<pads = [1, 0, 1, 0]>(i, wide) y = GlobalAveragePool(c)",
}


SHAPES = {"w": (4, 4), "bias": (4,), "scale": (4,), "table": (1, 6, 4), "filter": (4, 4, 1, 1), "wide": (4, 6, 3, 1)}


def network(nodes: str, opset: int = 20) -> ir.Model:
    rng = np.random.default_rng(0)
    outputs = ", ".join(f"float[{name}] {name}" for name in "yz" if f"{name} = " in nodes)
    text = f'<ir_version: 8, opset_import: ["": {opset}]> g (float[b, 6, 4] x) => ({outputs}) {{ {nodes} }}'
    numbers = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in SHAPES.items()}
    return parse(
        text,
        rows=np.array([1]),
        rows2=np.array([2]),
        halves=np.array([2, -1, 6, 4]),
        pairs=np.array([0, 3, 2, 4]),
        joined=np.array([0, -1, 4]),
        ends=np.array([-1]),
        end=np.array([3]),
        six=np.float32(6),
        five=np.float32(5),
        **numbers,
    )


def check(nodes: str, macs: int | None, opset: int = 20) -> None:
    """`macs`: of the rewritten graph; None: those of the original."""
    original = network(nodes, opset)
    done = optimise(original, passes=["read-rows"], sizes=SIZES)
    assert done.steps[-1].macs == (done.work.macs if macs is None else macs)
    assert bool(done.steps[-1].sites) is (macs is not None)
    for images in (1, 3):
        check_equal(original, done.model, {"x": np.random.default_rng(1).standard_normal((images, 6, 4))})


@pytest.mark.parametrize(("nodes", "macs"), HOISTED.values(), ids=HOISTED)
def test_a_mean_is_hoisted(nodes: str, macs: int) -> None:
    check(nodes, macs)


@pytest.mark.parametrize("nodes", STAYS.values(), ids=STAYS)
def test_a_mean_stays(nodes: str) -> None:
    check(nodes, None)


def test_a_mean_whose_axes_are_an_attribute() -> None:
    check(f"{LAYER} y = ReduceMean<axes = [1], keepdims = 0>(r)", 2 * 16, opset=17)
    check(f"{LAYER} {SUM.format(keep=0, count='six')}", 2 * 16, opset=13)
