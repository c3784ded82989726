"""Packed graphs written node by node answer as the originals; faults planted in single nodes fail."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from foreign_networks import VOCABULARY, check_equal, parse, proof_fails, session_of, written
from masked_networks import MASK, check, feeds
from packed_graphs import behind, crossed, of_heads, repeated

from export.compiler.analyses import token_axes
from export.compiler.errors import NothingToRewrite
from export.compiler.passes import packed_loop_body
from export.compiler.pipeline import rewrite
from export.compiler.proof.masks import KINDS, draw_masks


def test_rows_of_another_input_may_read_each_other(tmp_path: Path) -> None:
    """And texts may share them."""
    before, after = (
        session_of(each) for each in (crossed(), written(crossed(), tmp_path, packed=MASK).rewritten.model)
    )
    for texts, length, rows in [(1, 1, 1), (3, 5, 2), (2, 4, 9), (30, 20, 3), (6, 1, 4), (3, 5, 1)]:
        for own in {texts, 1}:
            read = np.random.default_rng(rows).standard_normal((own, rows, 4)).astype(np.float32)
            given = feeds(texts, length, rows) | {"read": read}
            np.testing.assert_allclose(after.run(None, given)[0], before.run(None, given)[0], atol=2e-5)


def test_an_entry_behind_the_tokens_is_no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    original = behind("r = Relu(all) y = ReduceSum<keepdims = 0>(r, one)")
    check(ir.to_proto(original), rewrite(original, passes=(), packed=MASK).model)
    monkeypatch.setattr(token_axes.Tokens, "leads", lambda self, value: self.role(value).axes() == (0, 1))
    with pytest.raises((AssertionError, RuntimeError, NothingToRewrite)):
        check(ir.to_proto(original), rewrite(original, passes=(), packed=MASK).model)


REPEATED = """<ir_version: 8, opset_import: ["": 17]> g (int64[b, n] ids, int64[b, n] mask) => (float[b, 4] y) {
    x = Gather(words, ids) one = Unsqueeze(x, first) keys = Transpose<perm = [0, 1, 3, 2]>(one)
    alone = Unsqueeze(mask, middle) each = Tile(alone, heads) shown = Cast<to = 1>(each) hidden = Sub(unit, shown)
    low = Mul(hidden, lowest) plain = MatMul(one, keys) scores = Add(plain, low) weights = Softmax<axis = -1>(scores)
    mixed = MatMul(weights, one) sum = ReduceSum<keepdims = 0>(mixed, first) y = Gather<axis = 1>(sum, zero) }"""


def test_a_mask_that_is_repeated_for_each_head_hides() -> None:
    """As ProphetNet repeats it: its heads are no features of the tokens."""
    numbers = {"first": np.array([1]), "middle": np.array([1, 2]), "heads": np.array([1, 2, 1, 1]), "zero": np.array(0)}
    numbers |= {"unit": np.array(1, np.float32), "lowest": np.array(np.finfo(np.float32).min)}
    original = parse(REPEATED, words=np.random.default_rng(0).standard_normal((9, 4)).astype(np.float32), **numbers)
    packed = rewrite(original, packed="mask").model
    for seed, (texts, length) in enumerate(((3, 7), (20, 40))):
        mask = draw_masks(texts, length, seed, KINDS)
        given = {"ids": np.random.default_rng(seed).integers(0, 9, (texts, length)), "mask": mask}
        check_equal(original, packed, given)


def test_tokens_of_texts_and_heads_on_a_single_axis_are_picked() -> None:
    original = of_heads()
    check(ir.to_proto(original), rewrite(original, packed=MASK).model)


def test_rows_of_another_input_may_have_texts_and_heads_on_a_single_axis(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As the decoders of MVP and FSMT read the tokens."""
    original = of_heads(", float[batch, 2, 2, 2] read", "Reshape(read, again)")
    packed = written(original, tmp_path, packed=MASK).rewritten.model
    for seed, (texts, length) in enumerate(((3, 5), (20, 40), (1, 1))):
        read = np.random.default_rng(seed).standard_normal((texts, 2, 2, 2)).astype(np.float32)
        check_equal(original, packed, feeds(texts, length, seed) | {"read": read})
    true = packed_loop_body.Body._select_texts

    def turned(body: packed_loop_body.Body, value: ir.Value, rank: int, batch: int) -> ir.Value:
        taken = true(body, value, rank, batch)
        return body.nodes.transpose(taken, [0, 2, 1, 3]) if value.name == "read" else taken

    monkeypatch.setattr(packed_loop_body.Body, "_select_texts", turned)
    proof_fails(original, tmp_path, packed=MASK)


def test_a_value_repeated_for_every_token_is_packed() -> None:
    """As Doge adds to all scores of a key what it makes of the key."""
    more = "v = ReduceMax(made, two) k = Transpose<perm = [0, 2, 1]>(v) wide = Expand(k, each)"
    fill = "pairs = And(below, beside) f = Where(pairs, wide, lowest) s = MatMul(made, keys) scores = Add(s, f)"
    mean = "p = Softmax(scores) h = MatMul(p, x) shown = Mul(h, floats) y = ReduceSum<keepdims = 0>(shown, one)"
    original = repeated(f"{more} {fill} {mean}")
    check(ir.to_proto(original), rewrite(original, passes=(), packed=MASK).model, rounds=5)


def test_token_values_gathered_from_a_table_of_every_text_are_packed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As TAPAS counts the tokens of a cell: of all texts' cells on a single axis."""
    cells = "n = Shape<start = 0, end = 1>(input_ids) all = Mul(n, four) none = Expand(nought, all) b = Squeeze(n)"
    own = "rows = Range(first, b, step) r = Mul(rows, four) starts = Unsqueeze(r, one) cell = Mod(input_ids, four)"
    put = "sum = Add(starts, cell) at = Reshape(sum, rest) f = Cast<to = 1>(input_ids) found = Reshape(f, rest)"
    most = 'most = ScatterElements<reduction = "max">(none, at, found)'
    read = f"{most} made = Reshape(most, apart) i = Cast<to = 7>(made)"
    token = "num = GatherElements<axis = 1>(i, cell) x = Gather(table, num) shown = Mul(x, floats)"
    original = parse(
        f"""<ir_version: 8, opset_import: ["": 18]>
        g (int64[batch, seq] input_ids, int64[batch, seq] attention_mask) => (float[batch, 4] y)
        {{
            m = Unsqueeze(attention_mask, two) floats = Cast<to = 1>(m) {cells} {own} {put} {read} {token}
            h = MatMul(shown, w) y = ReduceSum<keepdims = 0>(h, one)
        }}""",
        table=np.random.default_rng(0).standard_normal((VOCABULARY, 4)).astype(np.float32),
        w=np.eye(4, dtype=np.float32),
        nought=np.zeros((), np.float32),
        **{name: np.array([number]) for name, number in (("one", 1), ("two", 2), ("four", 4), ("rest", -1))},
        **{name: np.array(number) for name, number in (("first", 0), ("step", 1), ("apart", [-1, 4]))},
    )
    check(ir.to_proto(original), rewrite(original, passes=(), packed=MASK).model, rounds=5)
    true = packed_loop_body.Body.at_rows
    monkeypatch.setattr(
        packed_loop_body.Body,
        "at_rows",
        lambda body, indices: true(body, body.part.token_indices),  # not among the tokens of all texts
    )
    proof_fails(original, tmp_path, only=(), packed=MASK)
