"""Few queries whose number only a request tells, such as the points of a prompt: equal answers for any number."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from foreign_networks import check_random, parse

from export.compiler.passes.absorbed_attention import Absorber
from export.compiler.pipeline import Rewritten, optimise

SWAP = "Transpose<perm = [0, 2, 1, 3]>"
QUERIES = f"more = Pad(x, two) pq = MatMul(more, wq) aq = Add(pq, bq) hq = Reshape(aq, split) q = {SWAP}(hq)"
KEYS = "pk = MatMul(z, wk) ak = Add(pk, bk) hk = Reshape(ak, split) k = Transpose<perm = [0, 2, 3, 1]>(hk)"
VALUES = f"pv = MatMul(z, wv) av = Add(pv, bv) hv = Reshape(av, split) v = {SWAP}(hv)"
PRODUCTS = "s = MatMul(q, k) a = Softmax<axis = -1>(s) o = MatMul(a, v)"
OUTPUT = f"t = {SWAP}(o) j = Reshape(t, joined) y = MatMul(j, wo)"
ATTENTION = f"{QUERIES} {KEYS} {VALUES} {PRODUCTS} {OUTPUT}"
COUNT = "n = Shape<start = 1, end = 2>(more) three = Concat<axis = 0>(batch, n, width)"
SPLIT = "four = Concat<axis = 0>(batch, heads, n, width) o = Reshape(o3, four)"
JOINED = f"{COUNT} q3 = Reshape(q, three) k3 = Reshape(k, keys) v3 = Reshape(v, values) {PRODUCTS} {SPLIT}"
FORMS = {
    "plain": ATTENTION,
    "a factor of each token": ATTENTION.replace(
        "a = Softmax<axis = -1>(s)", "m = Mul(s, mask) a = Softmax<axis = -1>(m)"
    ),
    "normalised queries": ATTENTION.replace("Reshape(aq,", "Reshape(nq,").replace("hq =", "nq = Tanh(aq) hq ="),
    "normalised keys": ATTENTION.replace("Reshape(ak,", "Reshape(nk,").replace("hk =", "nk = Tanh(ak) hk ="),
    "no output projection": ATTENTION.replace("MatMul(j, wo)", "Tanh(j)"),
    "queries first, as in nn.MultiheadAttention": ATTENTION.replace(f"{SWAP}(o)", "Transpose<perm = [2, 0, 1, 3]>(o)"),
    "images and heads on one axis": ATTENTION.replace(
        PRODUCTS, JOINED.replace("(q, k)", "(q3, k3)").replace("o = MatMul(a, v)", "o3 = MatMul(a, v3)")
    ),
}


def network(nodes: str) -> ir.Model:
    rng = np.random.default_rng(0)
    shapes = dict.fromkeys(("wq", "wk", "wv", "wo"), (8, 8)) | dict.fromkeys(("bq", "bk", "bv"), (8,)) | {"mask": (40,)}
    return parse(
        f'<ir_version: 8, opset_import: ["": 17]> g (float[b, q, 8] x, float[b, 40, 8] z) => (float y) {{ {nodes} }}',
        **{name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()},
        split=[0, 0, 2, 4],
        joined=[0, 0, 8],
        two=[0, 1, 0, 0, 1, 0],
        batch=[-1],
        heads=[2],
        width=[4],
        values=[-1, 40, 4],
        keys=[-1, 4, 40],
    )


def absorbed(original: ir.Model, queries: int = 1) -> Rewritten:
    return optimise(original, passes=["absorb-queries", "tidy"], sizes={"b": 1, "q": queries})


def check(original: ir.Model, done: Rewritten, batch: int, queries: int) -> None:
    check_random(original, done.model, x=(batch, queries, 8), z=(batch, 40, 8))


@pytest.mark.parametrize("nodes", FORMS.values(), ids=FORMS)
def test_any_number_of_queries_gives_equal_answers(nodes: str) -> None:
    original = network(nodes)
    done = absorbed(original)
    (site,) = done.steps[0].sites
    assert site.message.startswith("q + 2 queries absorb")
    for batch, queries in [(2, 1), (1, 0), (0, 3), (3, 50)]:
        check(original, done, batch, queries)


@pytest.mark.parametrize(
    ("nodes", "queries", "reason"),
    [
        (ATTENTION, 9, "absorbed for 22 queries it would cost"),
        (ATTENTION.replace("MatMul(more,", "MatMul(x,"), 1, "expected a known number of queries, found q"),
    ],
)
def test_many_queries_or_none_stay(nodes: str, queries: int, reason: str) -> None:
    assert reason in absorbed(network(nodes), queries).steps[0].left_out


def test_a_number_of_one_request_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Absorber, "queries", 3)
    original = network(ATTENTION)
    done = absorbed(original)
    check(original, done, 2, 1)
    with pytest.raises(Exception, match="eshape"):
        check(original, done, 2, 2)
