"""Biases that later sums take up: equal answers in double, refusals by name, planted faults."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from foreign_networks import apart, parse
from numpy.typing import NDArray

from export.compiler.analyses import bias_shifts
from export.compiler.pipeline import Rewritten, optimise

QUERIES = "m = MatMul(t, w2) q = Add(m, asked) r = Reshape(q, rows) k = Transpose<perm = [0, 2, 1]>(t) s = MatMul(r, k)"
POOLED = "p = Softmax<axis = -1>(s) o = MatMul(p, t) j = Reshape(o, joined)"
OUTPUT = "v = MatMul(j, values) b = Add(v, bias) c = Add(t, b)"
FEED_FORWARD = "f = MatMul(c, w) g = Add(f, bias) h = Gelu(g) i = MatMul(h, w) l = Add(i, bias2) d = Add(c, l)"
HEAD = "e = Gather<axis = 1>(d, zero) y = Gemm(e, head, classes)"
BLOCK = f"{QUERIES} {POOLED} {OUTPUT} {FEED_FORWARD} {HEAD}"
CARRIED = {  # how the tokens t are made, what follows, and the biases that go
    "behind a table": (f"t = Add(x, table) {BLOCK}", ["q", "b", "l"]),
    "of queries, keys and values": (
        "t = Add(x, table) m = MatMul(t, w2) q = Add(m, asked) h = Gelu(q) i = MatMul(h, values) r = Add(t, i) "
        "e = Gather<axis = 1>(r, zero) y = Gemm(e, head, classes)",
        ["q"],
    ),
    "behind a residual": (f"z = MatMul(x, w) u = Add(z, bias) t = Add(x, u) {BLOCK}", ["q", "b", "l"]),
    "behind a norm": (
        f"t = LayerNormalization(x, bias2, bias) {QUERIES} {POOLED} v = MatMul(j, values) b = Add(v, bias) "
        "e = Gather<axis = 1>(b, zero) y = Gemm(e, head, classes)",
        ["q", "b"],
    ),
    "behind a class token": (
        "sizes = Shape<start = 0, end = 1>(x) size = Concat<axis = 0>(sizes, one, eight) n = Expand(cls, size) "
        f"z = MatMul(x, w) a = Add(z, bias) t = Concat<axis = 1>(n, a) {OUTPUT.replace('(j, values)', '(t, w)')} "
        f"{FEED_FORWARD} {HEAD}",
        ["a", "b", "l"],
    ),
}
STAYS = [
    ("m = MatMul(x, w2) a = Add(m, asked) y = Relu(a)", "x (graph input): is given"),
    ("m = MatMul(x, w) a = Add(m, bias) y = Relu(a)", "y (Relu): reads the sum and is not linear"),
    ("m = MatMul(x, w) a = Add(m, bias) s = Softmax(a) y = Relu(s)", "the constant differs along its axis"),
    (
        "m = MatMul(x, w) a = Add(m, far) n = MatMul(a, w) y = Add(n, bias)",
        "float32 would round behind a constant",
    ),
    ("m = MatMul(x, w) a = Add(m, bias) n = MatMul(a, a) y = Relu(n)", "multiplies two sums"),
    ("m = MatMul(x, w) a = Add(m, bias) y = MatMul(a, w)", "its constant is read by the graph's user"),
    ("m = MatMul(x, w) y = Add(m, bias)", "nothing of its kind"),
    (f"t = Relu(x) {QUERIES} {POOLED} y = MatMul(j, values)", "t (Relu): makes the tokens and adds no constant"),
    (
        f"t = Add(x, table) {QUERIES} {POOLED} v = MatMul(j, values) y = Add(v, bias)".replace("asked", "other"),
        "no constant of the tokens gives this bias",
    ),
    (
        f"t = Add(x, table) {QUERIES} {POOLED} v = MatMul(j, values) y = Add(v, bias)".replace("asked", "nearly"),
        "no constant of the tokens gives this bias",
    ),
]


SHAPES = {"w": (8, 8), "other": (16,), "table": (1, 8, 8), "values": (16, 8), "head": (8, 3), "classes": (3,)}
SHAPES |= {"bias": (8,), "bias2": (8,), "cls": (1, 1, 8)}


def network(nodes: str) -> ir.Model:
    """Weights of few bits: the queries' bias is exactly a constant of the tokens by their weight."""
    rng = np.random.default_rng(0)

    def drawn(*shape: int) -> NDArray[np.float32]:
        numbers = rng.integers(1, 4, shape) * rng.choice([-1, 1], shape)
        return np.asarray(numbers / 4, np.float32)

    wide = drawn(8, 16)
    asked = drawn(8) @ wide
    return parse(
        f"""<ir_version: 10, opset_import: ["": 20]> g (float[b, 8, 8] x) => (float y) {{ {nodes} }}""",
        w2=wide,
        asked=asked,
        nearly=asked + np.eye(16, dtype=np.float32)[15] / 4,  # the first 15 are a constant's
        far=400 * drawn(8),
        **{name: drawn(*shape) for name, shape in SHAPES.items()},
        **{"rows": [0, 16, 8], "joined": [0, 8, 16], "zero": 0, "one": [1], "eight": [8]},
    )


def carried(original: ir.Model) -> Rewritten:
    return optimise(original, passes=["carry-biases"])


@pytest.mark.parametrize(("nodes", "gone"), CARRIED.values(), ids=CARRIED)
def test_carried_biases_leave_the_answers_as_they_are(nodes: str, gone: list[str]) -> None:
    original = network(nodes)
    done = carried(original)
    assert [site.value for site in done.steps[0].sites] == gone
    assert len(done.model.graph) == len(original.graph) - len(gone)
    assert apart(original, done.model, (3, 8, 8)) < 1e-13


@pytest.mark.parametrize(
    ("nodes", "told"),
    [
        ("m = MatMul(x, w) a = Add(m, bias) n = MatMul(a, w) z = Add(n, bias) y = Relu(z)", "carried to a sum that"),
        (f"{CARRIED['behind a table'][0]}", "carried to 2 sums that"),
        (
            "k = MatMul(x, w) a = Add(k, bias) t = Transpose<perm = [0, 2, 1]>(a) s = MatMul(x, t) y = Softmax(s)",
            "left out: no answer depends on it",
        ),
    ],
)
def test_a_site_says_how_many_sums_a_bias_was_carried_to(nodes: str, told: str) -> None:
    assert carried(network(nodes)).steps[0].sites[0].message.startswith(told)


@pytest.mark.parametrize(("nodes", "reason"), STAYS)
def test_a_bias_that_cannot_be_carried_is_refused_by_name(nodes: str, reason: str) -> None:
    original = network(nodes)
    done = carried(original)
    (step,) = done.steps
    assert not step.sites
    assert reason in (" ".join(map(str, step.refusals)) or step.left_out)
    assert apart(original, done.model, (3, 8, 8)) == 0


@pytest.mark.parametrize("operator", ["Add", "MatMul", "Gemm"])
def test_a_wrong_rule_is_found(operator: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rules = dict(bias_shifts.RULES)
    right = rules[operator]
    scaled = {"Add": 1.5, "MatMul": 0.5, "Gemm": 0.5}[operator]
    rules[operator] = lambda state, node, given: right(state, node, {k: scaled * array for k, array in given.items()})
    monkeypatch.setattr(bias_shifts, "RULES", rules)
    original = network(CARRIED["behind a table"][0])
    assert apart(original, carried(original).model, (3, 8, 8)) > 1e-3
