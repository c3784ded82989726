"""Attention and RotaryEmbedding of opset 23, cut and packed; ONNX Runtime's answers decide."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from foreign_networks import answers, parse, proof_fails, written
from numpy.typing import NDArray

from export.compiler.operators import demand_rules
from export.compiler.operators.boxes import box
from export.compiler.pipeline import optimise, rewrite
from export.compiler.proof.masks import KINDS, draw_masks

Array = NDArray[Any]
MASK, WORDS, WIDTH, PLACES = "attention_mask", 50, 16, 32
HEADS = 2


TURNS = {  # how q0 and k0 are turned, in three axes or four
    "numbers": "q1 = RotaryEmbedding<num_heads = 2>(q0, cos, sin, p) "
    "k1 = RotaryEmbedding<num_heads = 2>(k0, cos, sin, p)",
    "rows": "q1 = RotaryEmbedding<num_heads = 2>(q0, c, s) k1 = RotaryEmbedding<num_heads = 2>(k0, c, s)",
    "heads": "q1 = RotaryEmbedding<interleaved = 1>(q4, c, s) k1 = RotaryEmbedding<interleaved = 1>(k4, c, s)",
    "own": "q1 = com.microsoft.RotaryEmbedding<num_heads = 2>(q0, p, cos, sin) "
    "k1 = com.microsoft.RotaryEmbedding<num_heads = 2>(k0, p, cos, sin)",
}


def rotary(form: str) -> ir.Model:
    """An encoder of one block, whose table has PLACES rows."""
    split = " ".join(
        f"{name}r = Reshape({name}0, apart) {name}4 = Transpose<perm = [0, 2, 1, 3]>({name}r)" for name in "qkv"
    )
    if form == "heads":
        attend = (
            "a4 = Attention<is_causal = 1>(q1, k1, v4, m) at = Transpose<perm = [0, 2, 1, 3]>(a4) a = Reshape(at, flat)"
        )
    else:
        attend = "a = Attention<q_num_heads = 2, kv_num_heads = 2>(q1, k1, v0, m)"
    rng = np.random.default_rng(0)
    angles = np.arange(PLACES)[:, None] / 10.0 ** np.arange(WIDTH // HEADS // 2)
    weights = {name: rng.standard_normal((WIDTH, WIDTH)).astype(np.float32) for name in ("wq", "wk", "wv", "wo")}
    return parse(
        f"""<ir_version: 10, opset_import: ["": 23, "com.microsoft": 1]>
        g (int64[batch, seq] ids, int64[batch, seq] {MASK}) => (float[batch, seq, {WIDTH}] y) {{
            x = Gather(words, ids) n = RMSNormalization(x, scale)
            q0 = MatMul(n, wq) k0 = MatMul(n, wk) v0 = MatMul(n, wv)
            {split if form == "heads" else ""}
            counted = CumSum({MASK}, axis) p = Sub(counted, {MASK}) c = Gather(cos, p) s = Gather(sin, p)
            shown = Cast<to = 9>({MASK}) wide = Unsqueeze(shown, middle)
            texts = Shape<start = 0, end = 1>(ids) tokens = Shape<start = 1, end = 2>(ids)
            size = Concat<axis = 0>(texts, one, tokens, tokens) m = Expand(wide, size)
            {TURNS[form]} {attend}
            o = MatMul(a, wo) y = Add(x, o) }}""",
        words=rng.standard_normal((WORDS, WIDTH)).astype(np.float32),
        scale=rng.standard_normal(WIDTH).astype(np.float32),
        cos=np.cos(angles).astype(np.float32),
        sin=np.sin(angles).astype(np.float32),
        apart=np.array([0, 0, HEADS, WIDTH // HEADS]),
        flat=np.array([0, 0, WIDTH]),
        middle=np.array([1, 2]),
        one=np.array([1]),
        axis=np.array(1),
        **weights,
    )


def feeds(texts: int, length: int, seed: int) -> dict[str, Array]:
    ids = np.random.default_rng(seed).integers(0, WORDS, (texts, length))
    return {"ids": ids, MASK: draw_masks(texts, length, seed, KINDS)}


SIZES = [(1, 1), (3, 1), (2, 9), (20, 25), (40, PLACES)]  # the last have more tokens than the table has rows


@pytest.mark.parametrize("form", TURNS)
def test_rows_of_a_rotary_embedding_are_cut(form: str) -> None:
    """Its rule lets the row of the queries through, or their product would be computed whole. "heads" is causal."""
    original = rotary(form)
    cut = rewrite(original, ["y[:,-1]"], ["read-rows"])
    places = {site.value for step in cut.steps for site in step.sites}
    assert any(name.startswith("q0") for name in places), places
    for seed, (texts, length) in enumerate(SIZES):
        given = feeds(texts, length, seed)
        before, after = (answers(each, given)[0] for each in (original, cut.model))
        np.testing.assert_allclose(after, before[:, -1], atol=1e-4)


@pytest.mark.parametrize("form", TURNS)
def test_a_rotary_embedding_is_packed(form: str) -> None:
    original = rotary(form)
    packed = rewrite(original, ["y[mask]"], packed=MASK).model
    for seed, (texts, length) in enumerate(SIZES):
        given = feeds(texts, length, seed)
        before = answers(original, given)[0] * given[MASK][..., None]
        np.testing.assert_allclose(answers(packed, given)[0], before, atol=1e-4)


def test_a_wrong_row_of_cosines_fails_the_proof(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A planted fault."""

    def first(*given: Any, true: Any = demand_rules.rotated) -> demand_rules.Demand:
        demand = true(*given)
        wrong = {k: box({axis: (0,) * len(rows) for axis, rows in demand.inputs[k]}) for k in (1, 2)}
        return demand_rules.Demand(demand.produced, {**demand.inputs, **wrong})

    written(rotary("rows"), tmp_path, "y[:,-1]")
    monkeypatch.setattr(demand_rules, "rotated", first)
    proof_fails(rotary("rows"), tmp_path, "y[:,-1]")


def causal(keys: str) -> ir.Model:
    """`keys`: k of as many tokens as the queries, or of others."""
    rng = np.random.default_rng(0)
    return parse(
        f"""<ir_version: 10, opset_import: ["": 23]>
        g (float[batch, seq, {WIDTH}] x, float[batch, more, {WIDTH}] z) => (float[batch, seq, {WIDTH}] y) {{
            q = MatMul(x, wq) k = MatMul({keys}, wk)
            y = Attention<is_causal = 1, q_num_heads = 2, kv_num_heads = 2>(q, k, k) }}""",
        **{name: rng.standard_normal((WIDTH, WIDTH)).astype(np.float32) for name in ("wq", "wk")},
    )


@pytest.mark.parametrize(
    ("keys", "read", "cut"), [("x", -1, True), ("x", 0, False), ("x", -2, False), ("z", -1, False)]
)
def test_the_last_row_of_a_causal_attention_is_cut(keys: str, read: int, cut: bool) -> None:
    original = causal(keys)
    found = optimise(original, [f"y[:,{read}]"], ["read-rows"])
    assert bool(found.steps[0].sites) is cut
    for texts, tokens, more in ((2, 5, 5), (1, 2, 7), (3, 7, 4)):
        rng = np.random.default_rng(tokens)
        given = {"x": rng.standard_normal((texts, tokens, WIDTH)), "z": rng.standard_normal((texts, more, WIDTH))}
        given = {name: array.astype(np.float32) for name, array in given.items()}
        before, after = (answers(each, given)[0] for each in (original, found.model))
        np.testing.assert_allclose(after, before[:, read], atol=1e-5)


@pytest.mark.parametrize(("keys", "read"), [("x", 0), ("z", -1)])
def test_a_row_that_does_not_see_every_key_fails_the_proof(
    keys: str, read: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(demand_rules, "sees_every_key", lambda shapes, node, rows: True)
    proof_fails(causal(keys), tmp_path, f"y[:,{read}]")


DECODER = f"""<ir_version: 10, opset_import: ["": 23]>
    g (int64[batch, seq] ids, int64[batch, seq] {MASK}, int64[batch, rows] made) => (float[batch, rows, {WIDTH}] y) {{
        x = Gather(words, ids) n = RMSNormalization(x, scale) k = MatMul(n, wk) v = MatMul(n, wv)
        d = Gather(words, made) q = MatMul(d, wq) shown = Cast<to = 9>({MASK}) wide = Unsqueeze(shown, middle)
        texts = Shape<start = 0, end = 1>(ids) tokens = Shape<start = 1>(ids) asked = Shape<start = 1>(made)
        size = Concat<axis = 0>(texts, one, asked, tokens) m = Expand(wide, size)
        a = Attention<q_num_heads = 2, kv_num_heads = 2>(q, k, v, m) o = MatMul(a, wo)
        y = Attention<is_causal = 1, q_num_heads = 2, kv_num_heads = 2>(o, o, d) }}"""


def test_a_decoder_beside_packed_texts_attends_to_its_own_rows() -> None:
    """As T5 is written in opset 23."""
    rng = np.random.default_rng(0)
    shapes = dict.fromkeys(("wq", "wk", "wv", "wo"), (WIDTH, WIDTH)) | {"words": (WORDS, WIDTH)}
    numbers = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    numbers["scale"] = np.ones(WIDTH, np.float32)
    original = parse(DECODER, **numbers, middle=np.array([1, 2]), one=np.array([1]))
    packed = rewrite(original, ["y[:,-1]"], packed=MASK).model
    for seed, (texts, length) in enumerate(SIZES):
        given = feeds(texts, length, seed) | {"made": rng.integers(0, WORDS, (texts, 4))}
        before, after = answers(original, given)[0], answers(packed, given)[0]
        shown = given[MASK].any(1)  # ONNX Runtime gives numbers of its own to a text without tokens
        np.testing.assert_allclose(after[shown], before[shown, -1], atol=1e-4)
