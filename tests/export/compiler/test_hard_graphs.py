"""Graphs on which a pass once gave another answer, none, or none for an empty input."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from foreign_networks import parse
from numpy.typing import NDArray

from export.compiler.pipeline import PASSES, optimise
from export.compiler.proof.runner import Runner, answers_apart

LINEAR = "p = MatMul(z, w) q = Add(p, b) y = Relu(q)"
HEADS = "q6 = Add(q5, bq) q7 = Reshape(q6, heads) q = Transpose<perm = [0, 2, 1, 3]>(q7)"
ATTENTION = f"""
    r = Tanh(x) q5 = MatMul(r, wq) k5 = MatMul(r, wk) v5 = MatMul(r, wv)
    {HEADS} {HEADS.replace("q", "k")} {HEADS.replace("q", "v")}
    turned = Transpose<perm = [0, 1, 3, 2]>(k) s = MatMul(q, turned) a = Softmax<axis = -1>(s) o = MatMul(a, v)
    ot = Transpose<perm = [0, 2, 1, 3]>(o) oo = Reshape(ot, joined) z = Add(r, oo) c = Gather<axis = 1>(z, row)
    y = MatMul(c, head)
"""
GRAPHS = {  # inputs and nodes; shapes of the inputs; the names of weights are given by their shapes
    "a constant along tokens beside a norm's bias of as many features": (
        "float[b, 8, 8] x, float[b, 8, 8] v",
        "n = LayerNormalization(x, v8, u8) r = Relu(v) p = MatMul(r, w8x8) q = Add(p, t8) "
        "t = Transpose<perm = [0, 2, 1]>(q) z = Add(n, t) o = MatMul(z, w8x12) a = Add(o, v12) y = Relu(a)",
        [{"x": (2, 8, 8), "v": (2, 8, 8)}],
    ),
    "a norm's mean as tokens": (
        "float[b, n, 1] x",
        "m, z = LayerNormalization(x, v1, u1) p = MatMul(z, w1x12) q = Add(p, b1) r = Relu(q) y = Add(r, m)",
        [{"x": (2, 3, 1)}],
    ),
    "tokens that are a sum with itself": (
        "float[b, n, 4] x",
        f"u = Relu(x) t = Add(u, v4) z = Add(t, t) {LINEAR}",
        [{"x": (2, 3, 4)}],
    ),
    "a part that is joined twice": (
        "float[b, 2, 4] x, float[b, 2, 4] v",
        f"a = Relu(x) s = Add(a, v4) r = Relu(v) o = Add(r, u4) z = Concat<axis = 1>(s, o, o) {LINEAR}",
        [{"x": (2, 2, 4), "v": (2, 2, 4)}],
    ),
    "a sum of fewer axes": (
        "float[n, 4] x, float[b, n, 4] v",
        f"a = Relu(x) s = Add(a, v4) r = Relu(v) j = Add(s, r) z = Transpose<perm = [1, 0, 2]>(j) {LINEAR}",
        [{"x": (3, 4), "v": (2, 3, 4)}],
    ),
    "values that all texts share": (
        "float[b, 3, n] scores, float[n, 4] x",
        "a = Softmax<axis = -1>(scores) r = Relu(x) s = Add(r, v4) o = MatMul(a, s) "
        f"z = Transpose<perm = [1, 0, 2]>(o) {LINEAR}",
        [{"scores": (2, 3, 5), "x": (5, 4)}],
    ),
    "heads of as many patches as the picture has": (
        "float[b, 3, h, w] x",
        "c = Conv<strides = [4, 4]>(x, w8x3x4x4) f = Reshape(c, flat) tokens = Transpose<perm = [0, 2, 1]>(f) "
        "m = MatMul(tokens, w8x24) sizes = Shape<start = 0, end = 2>(m) t = Concat<axis = 0>(sizes, three_heads) "
        "r = Reshape(m, t) o = Transpose<perm = [2, 0, 1, 3]>(r) q, k, g = Split<axis = 0, num_outputs = 3>(o) "
        "s = Mul(q, k) y = Mul(s, g)",
        [{"x": (2, 3, 8, 12)}],
    ),
    "parts of a product whose size is read": (
        "float[b, n, 8] x",
        "m = MatMul(x, w8x24) p, q = Split<axis = -1, num_outputs = 2>(m) s = Size(m) f = Cast<to = 1>(s) "
        "r = Mul(p, q) y = Mul(r, f)",
        [{"x": (2, 3, 8)}, {"x": (0, 3, 8)}],
    ),
    "parts with an axis before them": (
        "float[n, b, 8] x",
        "m = MatMul(x, w8x24) u = Unsqueeze(m, one) p = Slice(u, first, half, last) q = Slice(u, half, end, last) "
        "y = Mul(p, q)",
        [{"x": (3, 2, 8)}, {"x": (3, 0, 8)}, {"x": (0, 2, 8)}],
    ),
    "flat tokens multiplied by flat tokens": (
        "float[b, n, 16] x, float[2, 8, 5] v",
        "f = Reshape(x, wide) r = Relu(v) g = Reshape(r, narrow) z = MatMul(f, g) y = Relu(z)",
        [{"x": (3, 4, 16), "v": (2, 8, 5)}],
    ),
    "an attention without a mask, of an empty batch": (
        "float[b, 5, 16] x",
        ATTENTION,
        [{"x": (2, 5, 16)}, {"x": (0, 5, 16)}, {"x": (1, 5, 16)}],
    ),
}
NUMBERS = {"flat": [0, 8, -1], "three_heads": [3, 8], "heads": [0, 0, 4, 4], "joined": [0, 0, 16], "wide": [-1, 16]}
NUMBERS |= {"narrow": [-1, 5], "one": [1], "first": [0], "half": [12], "end": [24], "last": [-1], "row": 0}


def weights(rng: np.random.Generator) -> dict[str, NDArray[Any]]:
    """Of few bits: constants of the tokens give the biases `b` and `b1` exactly."""
    shapes: dict[str, tuple[int, ...]] = {f"{letter}{size}": (size,) for letter in "vut" for size in (1, 4, 8, 12)}
    shapes |= {"w8x8": (8, 8), "w8x12": (8, 12), "w1x12": (1, 12), "w8x24": (8, 24), "w8x3x4x4": (8, 3, 4, 4)}
    shapes |= {"w": (4, 12), "head": (16, 10), **{f"w{name}": (16, 16) for name in "qkv"}}
    shapes |= {f"b{name}": (16,) for name in "qkv"}
    drawn = {name: (rng.integers(-12, 13, shape) / 8).astype(np.float32) for name, shape in shapes.items()}
    drawn["b"], drawn["b1"] = np.array([1, -2, 0.5, 1], np.float32) @ drawn["w"], 2 * drawn["w1x12"][0]
    return drawn | {name: np.array(numbers) for name, numbers in NUMBERS.items()}


@pytest.mark.parametrize(("inputs", "nodes", "shapes"), GRAPHS.values(), ids=GRAPHS)
def test_the_answers_stay(inputs: str, nodes: str, shapes: list[dict[str, tuple[int, ...]]], tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    original = parse(
        f'<ir_version: 10, opset_import: ["": 18]> g ({inputs}) => (float y) {{ {nodes} }}', **weights(rng)
    )
    ir.save(original, before := tmp_path / "before.onnx")
    ir.save(optimise(original, passes=list(PASSES)).model, after := tmp_path / "after.onnx")
    for sizes in shapes:
        feeds = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in sizes.items()}
        expected, found = (answers_apart(Runner(path), feeds)["y"] for path in (before, after))
        assert found.shape == expected.shape
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * np.abs(expected).max(initial=1))
