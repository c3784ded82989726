"""Packing refuses what reads hidden tokens, and says what."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from foreign_networks import VOCABULARY, Encoder, export, model, parse, run, session_of, written
from masked_networks import MASK, SIZES, Biased, Convolved, Disentangled, Divided, Filled, Masked, Sunk, feeds
from packed_graphs import behind, crossed

from export.compiler.errors import BadRequest, NothingToRewrite
from export.compiler.pipeline import rewrite

REFUSED = [
    (Masked("absolute", "plain"), "ReduceMean"),
    (Masked("absolute", "summed"), "Einsum"),
    (Masked("absolute", "hidden"), "shows hidden tokens"),
    (Biased(), "Softmax"),
    (Filled(), "Softmax"),
    (Divided(-2.8), "Softmax"),
    (Divided(100.0, least=-1e4), "Softmax"),  # what is left of the mask is as small as scores may be
    (Convolved(), "Conv"),
    (Sunk(behind=False), "Concat"),
    (Disentangled(in_turn=True), r"\(Reshape\): axis 0 of its output mixes"),
]


@pytest.mark.parametrize(("network", "named"), REFUSED)
def test_an_operator_that_reads_hidden_tokens_is_refused_by_name(network: Encoder, named: str) -> None:
    with pytest.raises(NothingToRewrite, match=named):
        rewrite(model(export(network)), sizes=SIZES, packed=MASK)


def test_scores_that_a_maximum_lifts_are_refused(tmp_path: Path) -> None:
    with pytest.raises(NothingToRewrite, match="Softmax"):
        written(crossed(floor=-5), tmp_path, packed=MASK)


@pytest.mark.parametrize(
    ("nodes", "told"),
    [
        ("y = Gather<axis = 1>(all, last)", "may pick what is no token"),
        ("y = Neg(all)", "shows hidden tokens"),
        ("part = Slice(all, zero, end, one) y = ReduceSum<keepdims = 0>(part, one)", "Slice"),
        ("more = Concat<axis = 1>(first, shown) y = ReduceSum<keepdims = 0>(more, one)", "Concat"),
    ],
)
def test_an_operator_that_may_read_an_entry_behind_the_tokens_is_refused(nodes: str, told: str) -> None:
    with pytest.raises(NothingToRewrite, match=told):
        rewrite(behind(nodes), passes=(), packed=MASK)


LAST = """rows = Range(zero, texts, one) row = Unsqueeze(rows, axis) place = Unsqueeze(last, axis)
    pair = Concat<axis = -1>(row, place) y = GatherND(h, pair)"""


def of_last_token(tokens: str, last: str) -> ir.Model:
    """`tokens` makes x of e, the words."""
    return parse(
        f"""<ir_version: 8, opset_import: ["": 18]> g (int64[b, n] ids, int64[b, n] {MASK}) => (float y) {{
            e = Gather(words, ids) size = Shape<start = 0, end = 1>(ids) texts = Squeeze(size) {tokens}
            h = MatMul(x, square) count = ReduceSum<keepdims = 0>({MASK}, axis) {last} {LAST} }}""",
        words=np.random.default_rng(0).standard_normal((VOCABULARY, 4)).astype(np.float32),
        square=np.eye(4, dtype=np.float32),
        **{"zero": 0, "one": 1, "axis": [1], "rest": [1, 4]},
    )


def test_a_pick_among_tokens_and_a_class_token_is_refused() -> None:
    shared = "sizes = Concat<axis = 0>(size, rest) token = Expand(one_row, sizes) x = Concat<axis = 1>(token, e)"
    with pytest.raises(NothingToRewrite, match=r"^pack: x \(Concat\): axis 1 of its output mixes tokens"):
        rewrite(of_last_token(f"one_row = Cast<to = 1>(one) {shared}", "last = Identity(count)"), packed=MASK)


def test_a_pick_behind_the_last_token_fails_as_before() -> None:
    """Of a text that the mask shows whole there is no such token."""
    original = of_last_token("x = Identity(e)", "last = Identity(count)")
    before, after = session_of(original), session_of(rewrite(original, passes=(), packed=MASK).model)
    mask = np.array([[1, 1, 0, 0], [1, 1, 1, 0], [0, 1, 1, 0]])
    given = {"ids": np.arange(12).reshape(3, 4) % VOCABULARY, MASK: mask}
    np.testing.assert_allclose(after.run(None, given)[0], before.run(None, given)[0], atol=1e-6)
    for session in (before, after):
        with pytest.raises(Exception, match=r"invalid ind|out of data bounds"):
            session.run(None, given | {MASK: np.ones_like(mask)})


def test_a_file_without_gain_names_the_option_that_leaves_out_tokens(tmp_path: Path) -> None:
    onnx.save(export(Masked(depth=1)), tmp_path / "mean.onnx")
    refused = run(tmp_path / "mean.onnx", "-o", tmp_path / "o.onnx", "--only", "read-rows")
    assert refused.exit_code == 3
    assert "part of an output or --packed attention_mask to leave out hidden tokens; nothing" in refused.output


def test_an_axis_whose_size_is_computed_is_refused_as_unknown() -> None:
    original = parse(
        f"""<ir_version: 8, opset_import: ["": 18]> g (int64[n, s] ids, int64[n, s] {MASK}) => (float[n, t, 4] y) {{
            e = Gather(w, ids) p = NonZero({MASK}) t = Transpose(p) h = GatherND(e, t) y = Unsqueeze(h, one) }}""",
        w=np.ones((VOCABULARY, 4), np.float32),
        one=np.array([1]),
    )
    with pytest.raises(NothingToRewrite, match="an axis of unknown size tells no texts from tokens"):
        rewrite(original, packed=MASK)


@pytest.mark.parametrize("read", ["y[:,-3:]", "y[:,:2]", "y[:,:-1]"])
def test_tokens_of_a_range_are_refused_with_what_helps(read: str) -> None:
    with pytest.raises(BadRequest, match=r"expected tokens by number with --packed, as y\[:,\[-2,-1\]\], found y\[:,"):
        rewrite(model(export(Masked("absolute", "hidden", depth=1))), [read], sizes=SIZES, packed=MASK)


def test_a_range_of_the_network_s_own_is_refused_without_a_hint_of_reads() -> None:
    """As MobileBERT joins the words before and behind each word."""
    own = parse(
        """<ir_version: 8, opset_import: ["": 17]> g (int64[b, n] ids, int64[b, n] mask) => (float[b, 4] y) {
        x = Gather(words, ids) next = Slice(x, one, far, one) h = MatMul(next, square) y = ReduceMax<axes=[1]>(h) }""",
        words=np.ones((9, 4), np.float32),
        square=np.eye(4, dtype=np.float32),
        one=np.array([1]),
        far=np.array([1 << 31]),
    )
    with pytest.raises(NothingToRewrite, match=r"^pack: next \(Slice\): it may read hidden tokens$"):
        rewrite(own, packed="mask")


def test_an_unknown_mask_is_refused(encoder: Path, tmp_path: Path) -> None:
    unknown = run(encoder, "-o", tmp_path / "o.onnx", "--packed", "mask")
    assert (unknown.exit_code, "expected one of the inputs input_ids, attention_mask" in unknown.output) == (2, True)
    alone = run(encoder, "-o", tmp_path / "o.onnx", "--read", "y[mask]")
    assert (alone.exit_code, "with --packed MASK" in alone.output) == (2, True)
    assert not (tmp_path / "o.onnx").exists()


@pytest.mark.parametrize("mask", [(1, 5), (3, 5), (5, 5), (4, 4), (4, 6)])
def test_a_mask_of_other_texts_or_tokens_than_the_ids_is_an_error(mask: tuple[int, int]) -> None:
    """Never fewer answers than texts."""
    after = session_of(rewrite(model(export(Masked())), sizes=SIZES, packed=MASK).model)
    with pytest.raises(Exception, match=r"expand shape|out of data bounds"):
        after.run(None, feeds(4, 5, 0, np.ones(mask, np.int64)))


def test_hidden_tokens_of_an_output_of_unknown_shape_are_refused() -> None:
    text = '<ir_version: 8, opset_import: ["": 17]> g (float[b, n] x, int64[k] s, int64[b, n] mask) => (float y)'
    told = "read: expected tokens in the output 'y', found that its shape does not follow from the graph"
    with pytest.raises(BadRequest, match=told):
        rewrite(parse(f"{text} {{ y = Reshape(x, s) }}"), ["y[mask]"], packed="mask")


def test_a_refusal_says_how_to_read_an_output_of_all_tokens(tmp_path: Path) -> None:
    onnx.save(export(Masked("absolute", "hidden")), tmp_path / "hidden.onnx")
    refused = run(tmp_path / "hidden.onnx", "-o", tmp_path / "o.onnx", "--packed", MASK)
    assert refused.exit_code == 3
    assert refused.output.endswith(
        "the output 'y' shows hidden tokens: --read 'y[:,0]' reads a part of it, "
        "--read 'y[mask]' all but hidden tokens; nothing written\n"
    )
