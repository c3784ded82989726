"""Layers whose readers take their output apart: equal answers, what is left alone, a planted fault."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from foreign_networks import apart, parse

from export.compiler.passes.materialise_parts import Materialiser
from export.compiler.pipeline import Rewritten, optimise, rewrite

ATTENTION = "k2 = Transpose<perm = [0, 2, 1]>(k) s = MatMul(q, k2) p = Softmax<axis = -1>(s) y = MatMul(p, v)"
HEADS = "k2 = Transpose<perm = [0, 1, 3, 2]>(k) s = MatMul(q, k2) p = Softmax<axis = -1>(s) y = MatMul(p, v)"
SPLIT = {  # nodes, and how many products stand where one stood
    "queries, keys and values": (
        f"m = MatMul(x, w) a = Add(m, b) q, k, v = Split<axis = -1>(a, thirds) {ATTENTION}",
        3,
    ),
    "of unequal width": (
        "m = MatMul(x, w) p, q = Split<axis = -1>(m, unequal) r = Gelu(p) y = Concat<axis = -1>(q, r)",
        2,
    ),
    "a Gemm": (
        "f = Reshape(x, flat) m = Gemm(f, w, b) p, q = Split<axis = 1>(m, halves) g = Sigmoid(p) y = Mul(g, q)",
        2,
    ),
    "a Gemm with a turned weight": (
        "f = Reshape(x, flat) m = Gemm<transB = 1>(f, turned, b) p, q = Split<axis = 1>(m, halves) y = Mul(p, q)",
        2,
    ),
    "heads as timm writes them": (
        "m = MatMul(x, w) a = Add(m, b) r = Reshape(a, heads) t = Transpose<perm = [2, 0, 3, 1, 4]>(r) "
        "q1, k1, v1 = Split<axis = 0>(t, ones) q = Squeeze(q1, zero) k = Squeeze(k1, zero) v = Squeeze(v1, zero) "
        + HEADS,
        3,
    ),
    "heads that are gathered": (
        "m = MatMul(x, w) a = Add(m, b) r = Reshape(a, heads) t = Transpose<perm = [2, 0, 3, 1, 4]>(r) "
        f"q = Gather<axis = 0>(t, n0) k = Gather<axis = 0>(t, n1) v = Gather<axis = 0>(t, n2) {HEADS}",
        3,
    ),
    "slices": (
        "m = MatMul(x, w) p = Slice(m, zero, twelve, two) q = Slice(m, twelve, far, two) g = Gelu(p) y = Mul(g, q)",
        2,
    ),
}
STAYS = {
    "an operator between": "m = MatMul(x, w) g = Gelu(m) p, q = Split<axis = -1>(g, halves) y = Mul(p, q)",
    "read whole as well": (
        "m = MatMul(x, w) p, q = Split<axis = -1>(m, halves) z = Mul(p, q) y = Concat<axis = -1>(z, m)"
    ),
    "parts that overlap": (
        "m = MatMul(x, w) p = Slice(m, zero, twelve, two) q = Slice(m, one, thirteen, two) g = Gelu(p) y = Mul(g, q)"
    ),
    "a weight of two layers": (
        "m = MatMul(x, w) z = Neg(x) o = MatMul(z, w) p, q = Split<axis = -1>(m, halves) u = Mul(p, q) "
        "r = ReduceSum(o, two) y = Mul(u, r)"
    ),
    "tokens, not features": "m = MatMul(x, w) p, q = Split<axis = 1>(m, fours) y = Mul(p, q)",
    "a head's channels": "m = MatMul(x, w) r = Reshape(m, rows) p, q = Split<axis = 1>(r, rows_of_two) y = Mul(p, q)",
}


INTEGERS: dict[str, Any] = {"thirds": [8, 8, 8], "halves": [12, 12], "unequal": [20, 4], "fours": [4, 4]}
INTEGERS |= {"rows_of_two": [8, 8], "ones": [1, 1, 1], "flat": [-1, 8], "heads": [0, 0, 3, 2, 4], "rows": [0, 16, 12]}
INTEGERS |= {"zero": [0], "one": [1], "two": [2], "twelve": [12], "thirteen": [13], "far": [2**31]}
INTEGERS |= {"n0": 0, "n1": 1, "n2": 2}


def network(nodes: str) -> ir.Model:
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((8, 24)).astype(np.float32)
    return parse(
        f"""<ir_version: 10, opset_import: ["": 20]> g (float[b, 8, 8] x) => (float y) {{ {nodes} }}""",
        w=weight,
        turned=weight.T.copy(),
        b=rng.standard_normal(24).astype(np.float32),
        **INTEGERS,
    )


def split(original: ir.Model) -> Rewritten:
    return optimise(original, passes=["split-products", "tidy"])


@pytest.mark.parametrize(("nodes", "layers"), SPLIT.values(), ids=SPLIT)
def test_each_part_has_a_layer_and_the_answers_stay(nodes: str, layers: int) -> None:
    original = network(nodes)
    done = split(original)
    (site,) = done.steps[0].sites
    assert site.value.startswith("m")
    assert site.message == f"computed as {layers} layers"
    kinds = Counter(node.op_type for node in done.model.graph)
    assert not {"Split", "Gather", "Slice"} & set(kinds)
    assert done.steps[0].work == done.work
    assert apart(original, done.model, (3, 8, 8)) < 1e-13


def test_a_file_of_joint_layers_is_worth_a_rewrite_though_it_multiplies_as_much() -> None:
    done = rewrite(network(SPLIT["of unequal width"][0]))
    assert [step.name for step in done.steps if step.sites] == ["split-products"]
    assert done.steps[-1].macs == done.macs


@pytest.mark.parametrize("nodes", STAYS.values(), ids=STAYS)
def test_layers_whose_output_is_not_split_stay(nodes: str) -> None:
    original = network(nodes)
    done = split(original)
    assert not done.steps[0].sites
    assert done.steps[0].left_out.endswith("no reader separates the output of a linear layer")
    assert apart(original, done.model, (3, 8, 8)) == 0


def test_a_wrong_part_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Materialiser._constant_part

    def wrong(self: Materialiser, value: ir.Value, wanted: Any) -> ir.Value:
        ((axis, places),) = wanted
        return right(self, value, ((axis, places[1:] + places[:1]),))

    monkeypatch.setattr(Materialiser, "_constant_part", wrong)
    original = network(SPLIT["queries, keys and values"][0])
    assert apart(original, split(original).model, (3, 8, 8)) > 1e-3
