"""Packed files answer as the originals for masks of every kind, and compute no hidden token."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from foreign_networks import DIM, VOCABULARY, Encoder, check_equal, export, model, parse, run, session_of
from masked_networks import (
    LONGEST,
    Biased,
    Convolved,
    Disentangled,
    Filled,
    Grouped,
    Joined,
    Masked,
    Shallow,
    Sunk,
    Turned,
    Viewed,
)
from numpy.typing import NDArray

from export.compiler.analyses import hidden_entries, joins, tokens
from export.compiler.errors import BadRequest, NothingToRewrite, ProofFailed
from export.compiler.passes import pack, packed_body, packed_texts
from export.compiler.pipeline import rewrite
from export.compiler.proof.masks import KINDS, MANY, draw_masks
from export.rewrite_file import Request, rewrite_file

MASK = "attention_mask"
SIZES = {"batch": 1, "seq": 24}
FORMS = ["absolute", "counted", "rotary", "relative", "causal", "local"]
POOLS = ["mean", "cls", "last", "shown", "max", "sparse"]
# The newer exporter takes ten times as long: each pool once, and each form with the pool that the older cannot write.
OF_THE_NEWER = [*zip(FORMS, ["mean", "cls", "last", "max", "sparse"], strict=False)]
OF_THE_NEWER += [(form, "shown") for form in FORMS]
NETWORKS = [*((*each, "old", 17) for each in product(FORMS, POOLS)), *((*each, "new", 20) for each in OF_THE_NEWER)]
NETWORKS += [("absolute", "weighed", "old", 17)]
NETWORKS += [("gathered", "shown", "new", 20), ("gathered", "mean", "old", 17), ("selected", "mean", "old", 17)]
HIDDEN = VOCABULARY + 1000  # no row of the table: an error in the original

Array = NDArray[Any]


def feeds(texts: int, length: int, seed: int, mask: Array | None = None) -> dict[str, Array]:
    ids = np.random.default_rng(seed).integers(0, VOCABULARY, (texts, length))
    return {"input_ids": ids, MASK: draw_masks(texts, length, seed, KINDS) if mask is None else mask}


def check(proto: onnx.ModelProto, packed: ir.Model, rounds: int = 25, shown: bool = False) -> None:
    before, after = session_of(proto), session_of(packed)
    rng = np.random.default_rng(0)
    sizes = [
        (1, 1),
        (1, 2),
        (3, 1),
        MANY,
        *((int(rng.integers(1, 9)), int(rng.integers(1, 30))) for _ in range(rounds)),
    ]
    for seed, (texts, length) in enumerate(sizes):
        given = feeds(texts, length, seed)
        expected, found = before.run(None, given)[0], after.run(None, given)[0]
        if shown:
            expected = np.where(given[MASK].astype(bool)[..., None], expected, 0)
        assert found.shape == expected.shape
        size = np.abs(expected).max(initial=1, where=np.isfinite(expected))
        assert np.allclose(found, expected, atol=2e-5 * size, rtol=0, equal_nan=True), (texts, length, seed)


@pytest.mark.slow
@pytest.mark.parametrize(("form", "pool", "exporter", "opset"), NETWORKS)
def test_no_mask_changes_an_answer(form: str, pool: str, exporter: str, opset: int) -> None:
    """Other tests give the newer exporter two blocks.

    A single block whose last token reads relative positions is refused: its row of biases may be a hidden token's.
    """
    depth = 2 if exporter == "old" or (form, pool) == ("relative", "shown") else 1
    proto = export(Masked(form, pool, depth), exporter, opset)
    if (pool, exporter) == ("shown", "old"):  # of an empty text it takes the last token of the text before
        with pytest.raises(NothingToRewrite, match=joins.OF_ANOTHER):
            rewrite(model(proto), sizes=SIZES, packed=MASK)
        return
    packed = rewrite(model(proto), sizes=SIZES, packed=MASK)
    assert packed.steps[-1].sites
    check(proto, packed.model)


PACKED = [
    *((Masked(), "old", opset) for opset in (11, 12, 13)),
    (Masked("absolute", "filled", depth=1), "old", 17),
    (Masked("absolute", "put", depth=1), "old", 17),
    pytest.param(Masked("absolute", "put", depth=1), "new", 17, marks=pytest.mark.slow),
    (Masked("absolute", "placed", depth=1), "new", 17),  # the older exporter writes it in shapes that do not fit
    *((Joined("causal", pool), "old", 17) for pool in ("mean", "last")),
    *((Disentangled(pool), "old", 17) for pool in ("mean", "last")),
    (Disentangled(), "new", 18),
    *((Sunk(pool=pool), exporter, 17) for pool in ("mean", "last") for exporter in ("old", "new")),
]


@pytest.mark.parametrize(("network", "exporter", "opset"), PACKED)
def test_a_packed_file_answers_as_before(network: Encoder, exporter: str, opset: int) -> None:
    proto = export(network, exporter, opset)
    check(proto, rewrite(model(proto), sizes=SIZES, packed=MASK).model, rounds=6)


def test_onnx_runtime_reads_a_packed_file_without_a_warning(capfd: pytest.CaptureFixture[str]) -> None:
    packed = rewrite(model(export(Disentangled())), sizes=SIZES, packed=MASK).model
    ort.InferenceSession(ir.to_proto(packed).SerializeToString())
    assert not capfd.readouterr().err


@pytest.mark.parametrize("pool", ["mean", "cls"])
def test_hidden_tokens_are_not_computed(pool: str) -> None:
    """An id outside the table, at a hidden token, is an error of the original alone."""
    proto = export(Masked("absolute", pool))
    before, after = session_of(proto), session_of(rewrite(model(proto), sizes=SIZES, packed=MASK).model)
    mask = np.array([[1, 1, 1, 1], [1, 1, 0, 0], [1, 0, 1, 0]])
    given = feeds(3, 4, 0, mask)
    expected = before.run(None, given)[0]
    given["input_ids"] = np.where(mask == 1, given["input_ids"], HIDDEN)
    with pytest.raises(Exception, match="indices element out of data bounds"):
        before.run(None, given)
    assert np.allclose(after.run(None, given)[0], expected, atol=1e-5)


def test_of_an_output_of_all_tokens_hidden_ones_become_zero(tmp_path: Path) -> None:
    proto = export(Masked("absolute", "hidden"))
    packed = rewrite(model(proto), ["y[mask]"], sizes=SIZES, packed=MASK).model
    check(proto, packed, rounds=6, shown=True)
    onnx.save(proto, tmp_path / "hidden.onnx")
    written = rewrite_file(tmp_path / "hidden.onnx", tmp_path / "o.onnx", Request(("y[mask]",), packed=MASK))
    assert written.manifest["packed"] == MASK
    assert "masks of every kind" in written.manifest["proof_inputs"]
    assert written.proofs[0].error < 1e-12


@pytest.mark.parametrize("pool", ["mean", "shown"])
def test_no_text_gives_no_answer(pool: str) -> None:
    proto = export(Masked("absolute", pool), "new", 20)
    before, after = session_of(proto), session_of(rewrite(model(proto), sizes=SIZES, packed=MASK).model)
    given = feeds(1, 3, 0)
    none = {name: array[:0] for name, array in given.items()}
    assert after.run(None, none)[0].shape == before.run(None, none)[0].shape


@pytest.mark.slow
@pytest.mark.parametrize("exporter", ["old", "new"])
def test_a_last_token_that_is_gathered_of_all_features_is_packed_and_cut(exporter: str) -> None:
    proto = export(Masked("causal", "gathered"), exporter, 17 if exporter == "old" else 20)
    packed = rewrite(model(proto), sizes=SIZES, packed=MASK)
    assert any("chosen at run time" in site.told for step in packed.steps for site in step.sites)
    check(proto, packed.model, rounds=6)


def test_a_mask_whose_length_is_a_quotient_is_packed() -> None:
    proto = export(Viewed("causal"), "new", 20)
    assert any(node.op_type == "Div" and "floordiv" in node.output[0] for node in proto.graph.node)
    check(proto, rewrite(model(proto), sizes=SIZES, packed=MASK).model, rounds=6)


def test_features_joined_to_none_are_packed() -> None:
    proto = export(Turned("causal", "gathered", depth=1))
    assert any(node.op_type == "Concat" and len(node.input) == 2 for node in proto.graph.node)
    check(proto, rewrite(model(proto), sizes=SIZES, packed=MASK).model, rounds=6)


def test_a_row_that_sees_no_token_is_that_of_a_text_computed_whole(tmp_path: Path) -> None:
    """The first token reads itself alone; where it is hidden, the lowest float16 hides nothing."""
    onnx.save(export(Shallow("causal", "cls", depth=1)), tmp_path / "in.onnx")
    written = rewrite_file(tmp_path / "in.onnx", tmp_path / "o.onnx", Request(packed=MASK))
    assert written.proofs[0].error < 1e-12


@pytest.mark.slow
def test_grouped_queries_of_texts_without_tokens_give_no_rows() -> None:
    proto = export(Grouped("causal", "hidden", depth=1), "new", 20)
    packed = rewrite(model(proto), ["y[mask]"], sizes=SIZES, packed=MASK).model
    check(proto, packed, rounds=6, shown=True)
    before, after = session_of(proto), session_of(packed)
    given = feeds(2, 0, 0, np.ones((2, 0), np.int64))
    assert after.run(None, given)[0].shape == before.run(None, given)[0].shape == (2, 0, DIM)


def test_a_network_that_reads_the_number_of_elements_is_packed() -> None:
    proto = export(Masked())
    first = next(node for node in proto.graph.node if node.op_type == "LayerNormalization")
    hidden, first.output[0] = first.output[0], "normed"
    operators = ("Size", ["normed"], "size"), ("Sub", ["size", "size"], "none"), ("Cast", ["none"], "zero")
    made = [onnx.helper.make_node(name, inputs, [output]) for name, inputs, output in operators]
    made[-1].attribute.append(onnx.helper.make_attribute("to", onnx.TensorProto.FLOAT))
    for node in reversed([*made, onnx.helper.make_node("Add", ["normed", "zero"], [hidden])]):
        proto.graph.node.insert([*proto.graph.node].index(first) + 1, node)
    check(proto, rewrite(model(proto), sizes=SIZES, packed=MASK).model, rounds=6)


@pytest.mark.parametrize("pool", ["mean", "cls"])
def test_each_input_may_name_its_axes_apart(pool: str, tmp_path: Path) -> None:
    """So does torch.onnx with dynamic axes without names."""
    proto = export(Masked("absolute", pool))
    for value in proto.graph.input:
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            dim.dim_param = f"{value.name}_{axis}"
    onnx.save(proto, tmp_path / "apart.onnx")
    written = rewrite_file(tmp_path / "apart.onnx", tmp_path / "o.onnx", Request(packed=MASK))
    check(proto, written.rewritten.model, rounds=6)


def placed(network: Encoder) -> onnx.ModelProto:
    """It adds rows of a table by an input of its own, whose axes have other names."""
    proto = export(network)
    words = next(node for node in proto.graph.node if node.op_type == "Gather" and node.input[1] == "input_ids")
    out, words.output[0] = words.output[0], "words"
    table = np.random.default_rng(0).standard_normal((LONGEST, DIM)).astype(np.float32)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(table, "table"))
    after = [*proto.graph.node].index(words) + 1
    proto.graph.node.insert(after, onnx.helper.make_node("Gather", ["table", "position_ids"], ["placed"]))
    proto.graph.node.insert(after + 1, onnx.helper.make_node("Add", ["words", "placed"], [out]))
    axes = ["rows", "places"]
    proto.graph.input.append(onnx.helper.make_tensor_value_info("position_ids", onnx.TensorProto.INT64, axes))
    return proto


@pytest.mark.parametrize("read", [[], ["y[mask]"]])
def test_texts_may_share_a_row_of_places(read: list[str], tmp_path: Path) -> None:
    """Also where as many tokens are shown as a text has."""
    proto = placed(Masked("absolute", "hidden" if read else "mean", depth=1))
    onnx.save(proto, tmp_path / "in.onnx")
    written = rewrite_file(tmp_path / "in.onnx", tmp_path / "o.onnx", Request(tuple(read), packed=MASK))
    before, after = session_of(proto), session_of(written.rewritten.model)
    masks = [np.ones((3, 4), np.int64), np.array([[1, 1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 1]]), np.array([[1, 0, 1, 1]])]
    for mask in masks:
        texts = len(mask)
        for shape in [(texts, 4), (1, 4), (texts, 1), (1, 1)]:
            places = np.random.default_rng(0).integers(0, LONGEST, shape)
            given = feeds(texts, 4, 0, mask) | {"position_ids": places}
            shown = mask[..., None] if read else 1
            expected = before.run(None, given)[0] * shown
            np.testing.assert_allclose(after.run(None, given)[0], expected, atol=2e-5, err_msg=str(shape))
    with pytest.raises(Exception, match="expand shape"):
        after.run(None, feeds(3, 4, 0) | {"position_ids": np.zeros((2, 4), np.int64)})


@pytest.mark.parametrize(("pool", "read"), [("mean", []), ("cls", []), ("hidden", ["y[mask]"])])
def test_texts_without_padding_run_the_network_as_it_was(pool: str, read: list[str], tmp_path: Path) -> None:
    """No text is sorted, and no part of the texts is looped over. Of no text the network does not run."""
    proto = export(Masked("absolute", pool))
    packed = ir.to_proto(rewrite(model(proto), read, sizes=SIZES, packed=MASK).model)
    texts, length = 40, 16  # more than a part
    whole = np.ones((texts, length), np.int64)
    hidden = np.where(np.arange(texts * length).reshape(whole.shape) == 17, 0, whole)
    for mask, sorts in ((whole, False), (hidden, True), (whole[:1], False), (whole[:0], True)):
        options = ort.SessionOptions()
        options.enable_profiling, options.profile_file_prefix = True, str(tmp_path / "profile")
        session, given = ort.InferenceSession(packed.SerializeToString(), options), feeds(len(mask), length, 0, mask)
        found = session.run(None, given)[0]
        events = json.loads(Path(session.end_profiling()).read_text())
        assert any(event.get("args", {}).get("op_name") == "TopK" for event in events) is sorts
        assert len(found) == len(mask)
        if len(mask):  # the original cannot answer for none
            before = session_of(proto).run(None, given)[0]
            assert np.allclose(found, np.where(mask[..., None] == 1, before, 0) if read else before, atol=1e-5)


@pytest.mark.parametrize("kind", ["bool", "int8", "int32", "float16", "float64"])
def test_a_mask_may_be_of_any_type(kind: str) -> None:
    """ONNX Runtime's NonZero takes few of them."""
    proto = export(Masked(depth=1))
    dtype = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(kind))
    next(value for value in proto.graph.input if value.name == MASK).type.tensor_type.elem_type = dtype
    for node in proto.graph.node:
        node.input[:] = ["whole" if name == MASK else name for name in node.input]
    proto.graph.node.insert(0, onnx.helper.make_node("Cast", [MASK], ["whole"], to=onnx.TensorProto.INT64))
    before, after = session_of(proto), session_of(rewrite(model(proto), sizes=SIZES, packed=MASK).model)
    for texts, length in ((1, 1), (7, 20)):
        given = feeds(texts, length, 0)
        given[MASK] = given[MASK].astype(kind)
        np.testing.assert_allclose(after.run(None, given)[0], before.run(None, given)[0], atol=2e-5)


@pytest.mark.parametrize("mask", [(1, 5), (3, 5), (5, 5), (4, 4), (4, 6)])
def test_a_mask_of_other_texts_or_tokens_than_the_ids_is_an_error(mask: tuple[int, int]) -> None:
    """Never fewer answers than texts."""
    after = session_of(rewrite(model(export(Masked())), sizes=SIZES, packed=MASK).model)
    with pytest.raises(Exception, match=r"expand shape|out of data bounds"):
        after.run(None, feeds(4, 5, 0, np.ones(mask, np.int64)))


def crossed(floor: float = -3e38) -> ir.Model:
    """Rows of another input read tokens, then each other, as a decoder's do; the last is answered. No score is below
    `floor`, as in XGLM.
    """
    rng = np.random.default_rng(0)
    return parse(
        """<ir_version: 8, opset_import: ["": 18]>
        g (int64[batch, seq] input_ids, int64[batch, seq] attention_mask, float[own, rows, 4] read) => (float[n, 4] y)
        {
            x = Gather(table, input_ids) made = MatMul(x, w) keys = Transpose<perm = [0, 2, 1]>(made)
            m = Cast<to = 9>(attention_mask) shown = Unsqueeze(m, one) scores = MatMul(read, keys)
            filled = Where(shown, scores, lowest) sunk = Max(filled, floor) weights = Softmax(sunk)
            taken = MatMul(weights, x) h = Add(taken, read) other = Transpose<perm = [0, 2, 1]>(h)
            alike = MatMul(h, other) p = Softmax(alike) z = MatMul(p, h) y = Gather<axis = 1>(z, last)
        }""",
        table=rng.standard_normal((VOCABULARY, 4)).astype(np.float32),
        w=rng.standard_normal((4, 4)).astype(np.float32),
        lowest=np.array(-1e9, np.float32),
        floor=np.array(floor, np.float32),
        one=np.array([1]),
        last=np.array(-1),
    )


def test_rows_of_another_input_may_read_each_other(tmp_path: Path) -> None:
    """And texts may share them."""
    proto = ir.to_proto(crossed())
    onnx.save(proto, tmp_path / "in.onnx")
    written = rewrite_file(tmp_path / "in.onnx", tmp_path / "o.onnx", Request(packed=MASK))
    before, after = session_of(proto), session_of(written.rewritten.model)
    for texts, length, rows in [(1, 1, 1), (3, 5, 2), (2, 4, 9), (30, 20, 3), (6, 1, 4), (3, 5, 1)]:
        for own in {texts, 1}:
            read = np.random.default_rng(rows).standard_normal((own, rows, 4)).astype(np.float32)
            given = feeds(texts, length, rows) | {"read": read}
            np.testing.assert_allclose(after.run(None, given)[0], before.run(None, given)[0], atol=2e-5)


def test_scores_that_a_maximum_lifts_are_refused(tmp_path: Path) -> None:
    onnx.save(ir.to_proto(crossed(floor=-5)), tmp_path / "in.onnx")
    with pytest.raises(NothingToRewrite, match="Softmax"):
        rewrite_file(tmp_path / "in.onnx", tmp_path / "o.onnx", Request(packed=MASK))


def test_tokens_taken_for_such_rows_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hidden_entries.HiddenEntries, "is_of_text", lambda self, dim: self.texts_in(dim) is None)
    with pytest.raises(NothingToRewrite, match="it may join hidden tokens"):
        rewrite(model(export(Convolved())), sizes=SIZES, packed=MASK)


def behind(nodes: str) -> ir.Model:
    """Behind the tokens, 0 where hidden, stands the first one of each text."""
    rng = np.random.default_rng(0)
    return parse(
        f"""<ir_version: 8, opset_import: ["": 18]>
        g (int64[batch, seq] input_ids, int64[batch, seq] attention_mask) => (float y)
        {{
            x = Gather(table, input_ids) made = MatMul(x, w) m = Cast<to = 1>(attention_mask) wide = Unsqueeze(m, two)
            shown = Mul(made, wide) first = Slice(x, zero, one, one) all = Concat<axis = 1>(shown, first) {nodes}
        }}""",
        table=rng.standard_normal((VOCABULARY, 4)).astype(np.float32),
        w=rng.standard_normal((4, 4)).astype(np.float32),
        **{name: np.array([number]) for name, number in (("zero", 0), ("one", 1), ("two", 2), ("end", -2))},
        last=np.array(-1),
    )


def test_an_entry_behind_the_tokens_is_no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    original = behind("r = Relu(all) y = ReduceSum<keepdims = 0>(r, one)")
    check(ir.to_proto(original), rewrite(original, passes=(), packed=MASK).model)
    monkeypatch.setattr(tokens.Tokens, "leads", lambda self, value: self.role(value).axes() == (0, 1))
    with pytest.raises((AssertionError, RuntimeError, NothingToRewrite)):
        check(ir.to_proto(original), rewrite(original, passes=(), packed=MASK).model)


@pytest.mark.parametrize(
    ("nodes", "told"),
    [
        ("y = Gather<axis = 1>(all, last)", "may pick what is no token"),
        ("y = Neg(all)", "shows hidden tokens"),
        ("part = Slice(all, zero, end, one) y = ReduceSum<keepdims = 0>(part, one)", "Slice"),
        ("more = Concat<axis = 1>(first, shown) y = ReduceSum<keepdims = 0>(more, one)", "Concat"),
    ],
)
def test_what_takes_an_entry_behind_the_tokens_for_one_is_refused(nodes: str, told: str) -> None:
    with pytest.raises(NothingToRewrite, match=told):
        rewrite(behind(nodes), passes=(), packed=MASK)


REFUSED = [
    (Masked("absolute", "plain"), "ReduceMean"),
    (Masked("absolute", "summed"), "Einsum"),
    (Masked("absolute", "hidden"), "shows hidden tokens"),
    (Biased(), "Softmax"),
    (Filled(), "Softmax"),
    (Convolved(), "Conv"),
    (Sunk(behind=False), "Concat"),
    (Disentangled(in_turn=True), r"\(Reshape\): axis 0 of its output mixes"),
]


@pytest.mark.parametrize(("network", "named"), REFUSED)
def test_what_reads_hidden_tokens_is_refused_by_name(network: Encoder, named: str) -> None:
    with pytest.raises(NothingToRewrite, match=named):
        rewrite(model(export(network)), sizes=SIZES, packed=MASK)


def test_a_file_without_gain_names_the_option_that_leaves_out_tokens(tmp_path: Path) -> None:
    onnx.save(export(Masked(depth=1)), tmp_path / "mean.onnx")
    refused = run(tmp_path / "mean.onnx", "-o", tmp_path / "o.onnx", "--only", "read-rows")
    assert refused.exit_code == 3
    assert "; --packed attention_mask leaves out the tokens that it hides; nothing written" in refused.output


def test_an_axis_whose_size_is_computed_is_refused_as_unknown() -> None:
    original = parse(
        f"""<ir_version: 8, opset_import: ["": 18]> g (int64[n, s] ids, int64[n, s] {MASK}) => (float[n, t, 4] y) {{
            e = Gather(w, ids) p = NonZero({MASK}) t = Transpose(p) h = GatherND(e, t) y = Unsqueeze(h, one) }}""",
        w=np.ones((VOCABULARY, 4), np.float32),
        one=np.array([1]),
    )
    with pytest.raises(NothingToRewrite, match="an axis of unknown size tells no texts from tokens"):
        rewrite(original, packed=MASK)


@pytest.mark.parametrize(("read", "places"), [("y[:,1]", 1), ("y[:,-2]", -2), ("y[:,[-3,0,-1]]", [-3, 0, -1])])
def test_tokens_by_number_are_packed(read: str, places: Any) -> None:
    """A text of fewer tokens is an error, padded or not: -3 counted twice from its end would be another token."""
    proto = export(Masked("absolute", "hidden", depth=1))
    before, after = session_of(proto), session_of(rewrite(model(proto), [read], sizes=SIZES, packed=MASK).model)
    for seed, (texts, length) in enumerate([(3, 3), (2, 9), (30, 20)]):
        given = feeds(texts, length, seed)
        np.testing.assert_allclose(after.run(None, given)[0], before.run(None, given)[0][:, places], atol=2e-5)
    least = max(1 + place if place >= 0 else -place for place in np.ravel(places))
    for mask in ([[1] * (least - 1)], [[1] * (least - 2) + [0]]):
        with pytest.raises(Exception, match=r"out of data bounds|Out of range"):
            after.run(None, feeds(1, least - 1, 0, np.array(mask, np.int64)))


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


def of_heads(more: str = "", rows: str = "Gather<axis = 1>(flat, ends)") -> ir.Model:
    """As DeBERTa computes them: texts and heads as a single axis. The `rows` of queries are picked, or an input."""
    numbers = {"apart": [0, 0, 2, 2], "rest": [-1], "two": [2], "again": [-1, 2, 2], "between": [1, 2], "ends": [0, -1]}
    return parse(
        f"""<ir_version: 8, opset_import: ["": 17]>
        g (int64[batch, seq] input_ids, int64[batch, seq] attention_mask{more}) => (float[batch, 2, 2, 2] y)
        {{
            x = Gather(table, input_ids) n = Shape<start = 1>(input_ids) heads = Reshape(x, apart)
            own = Transpose<perm = [0, 2, 1, 3]>(heads) sizes = Concat<axis = 0>(rest, n, two)
            flat = Reshape(own, sizes) rows = {rows} keys = Transpose<perm = [0, 2, 1]>(flat)
            s = MatMul(rows, keys) all = Concat<axis = 0>(again, n) scores = Reshape(s, all)
            m = Cast<to = 9>(attention_mask) shown = Unsqueeze(m, between) f = Where(shown, scores, lowest)
            p = Softmax(f) y = MatMul(p, own)
        }}""",
        table=np.random.default_rng(0).standard_normal((VOCABULARY, 4)).astype(np.float32),
        lowest=np.array(-1e9, np.float32),
        **{name: np.array(number) for name, number in numbers.items()},
    )


def test_tokens_of_texts_and_heads_on_a_single_axis_are_picked() -> None:
    original = of_heads()
    check(ir.to_proto(original), rewrite(original, packed=MASK).model)


@pytest.mark.parametrize("of_a_table", [False, True])
def test_what_is_repeated_for_the_heads_of_other_texts_fails_the_proof(
    of_a_table: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def of_others(
        body: packed_body.Body, value: ir.Value, axis: int, heads: int, sizes: list[int | ir.Value]
    ) -> ir.Value:
        shape = [1] * (len(sizes) + 1)
        shape[axis] = heads
        each = body.nodes.add("Expand", [body.nodes.unsqueeze(value, [axis]), body.nodes.integers(shape)], value.dtype)
        return body.nodes.reshape(each, sizes)

    onnx.save(export(Disentangled()) if of_a_table else ir.to_proto(of_heads()), tmp_path / "in.onnx")
    monkeypatch.setattr(packed_body.Body, "_for_heads", of_others)
    with pytest.raises(ProofFailed):
        rewrite_file(tmp_path / "in.onnx", tmp_path / "o.onnx", Request(packed=MASK))


def test_rows_of_another_input_may_have_texts_and_heads_on_a_single_axis(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As the decoders of MVP and FSMT read the tokens."""
    original = of_heads(", float[batch, 2, 2, 2] read", "Reshape(read, again)")
    ir.save(original, tmp_path / "in.onnx")
    packed = rewrite_file(tmp_path / "in.onnx", tmp_path / "o.onnx", Request(packed=MASK)).rewritten.model
    for seed, (texts, length) in enumerate(((3, 5), (20, 40), (1, 1))):
        read = np.random.default_rng(seed).standard_normal((texts, 2, 2, 2)).astype(np.float32)
        check_equal(original, packed, feeds(texts, length, seed) | {"read": read})
    true = packed_body.Body._of_texts

    def turned(body: packed_body.Body, value: ir.Value, rank: int, batch: int) -> ir.Value:
        taken = true(body, value, rank, batch)
        return body.nodes.transpose(taken, [0, 2, 1, 3]) if value.name == "read" else taken

    monkeypatch.setattr(packed_body.Body, "_of_texts", turned)
    with pytest.raises(ProofFailed):
        rewrite_file(tmp_path / "in.onnx", tmp_path / "other.onnx", Request(packed=MASK))


def repeated(nodes: str) -> ir.Model:
    """`each`: the sizes to which Expand repeats for each token."""
    rng = np.random.default_rng(0)
    return parse(
        f"""<ir_version: 8, opset_import: ["": 18]>
        g (int64[batch, seq] input_ids, int64[batch, seq] attention_mask) => (float y)
        {{
            x = Gather(table, input_ids) made = MatMul(x, w) keys = Transpose<perm = [0, 2, 1]>(made)
            n = Shape<start = 1>(input_ids) each = Concat<axis = 0>(one, n, one) m = Cast<to = 9>(attention_mask)
            below = Unsqueeze(m, one) beside = Unsqueeze(m, two) floats = Cast<to = 1>(beside) {nodes}
        }}""",
        table=rng.standard_normal((VOCABULARY, 4)).astype(np.float32),
        w=rng.standard_normal((4, 4)).astype(np.float32),
        lowest=np.array(-1e9, np.float32),
        **{name: np.array([number]) for name, number in (("one", 1), ("two", 2))},
    )


def test_what_is_repeated_for_each_token_is_packed() -> None:
    """As Doge adds to all scores of a key what it makes of the key."""
    more = "v = ReduceMax(made, two) k = Transpose<perm = [0, 2, 1]>(v) wide = Expand(k, each)"
    fill = "pairs = And(below, beside) f = Where(pairs, wide, lowest) s = MatMul(made, keys) scores = Add(s, f)"
    mean = "p = Softmax(scores) h = MatMul(p, x) shown = Mul(h, floats) y = ReduceSum<keepdims = 0>(shown, one)"
    original = repeated(f"{more} {fill} {mean}")
    check(ir.to_proto(original), rewrite(original, passes=(), packed=MASK).model, rounds=5)


def test_a_sum_of_what_is_repeated_for_hidden_tokens_too_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    total = "shown = Mul(made, floats) total = ReduceSum(shown, one)"
    nodes = f"{total} wide = Expand(total, each) r = Relu(wide) y = ReduceSum<keepdims = 0>(r, one)"
    ir.save(repeated(nodes), tmp_path / "in.onnx")
    with pytest.raises(NothingToRewrite, match=r"y \(ReduceSum\): it may read hidden tokens"):
        rewrite_file(tmp_path / "in.onnx", tmp_path / "o.onnx", Request(packed=MASK))
    monkeypatch.setattr(tokens, "_is_long", lambda *axis: False)
    with pytest.raises(ProofFailed):
        rewrite_file(tmp_path / "in.onnx", tmp_path / "o.onnx", Request(packed=MASK))


def test_numbers_of_tokens_that_follow_from_a_table_of_each_text_are_packed(
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
    ir.save(original, tmp_path / "in.onnx")
    true = packed_body.Body.at_rows
    monkeypatch.setattr(packed_body.Body, "at_rows", lambda body, numbers: true(body, body.part.places))  # of one text
    with pytest.raises(ProofFailed):
        rewrite_file(tmp_path / "in.onnx", tmp_path / "o.onnx", Request(only=(), packed=MASK))


def test_an_unknown_mask_is_refused(encoder: Path, tmp_path: Path) -> None:
    unknown = run(encoder, "-o", tmp_path / "o.onnx", "--packed", "mask")
    assert (unknown.exit_code, "expected one of the inputs input_ids, attention_mask" in unknown.output) == (2, True)
    alone = run(encoder, "-o", tmp_path / "o.onnx", "--read", "y[mask]")
    assert (alone.exit_code, "with --packed MASK" in alone.output) == (2, True)
    assert not (tmp_path / "o.onnx").exists()


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


def forget_first_token(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(packed_texts, "_whole", lambda nodes, seen, places, true=packed_texts._whole: true(nodes, seen, []))


def believe_weights(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(hidden_entries, "SUNK", 0.5)


def forget_order(patch: pytest.MonkeyPatch) -> None:
    def first(loop: Any, size: ir.Value) -> ir.Value:
        made: ir.Value = loop.whole.add("Sub", [numbers(loop, size), numbers(loop, size)])
        return made

    numbers = pack._Loop._numbers
    patch.setattr(pack._Loop, "_numbers", first)


def trust_sums(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(joins, "_summed", lambda node, roles, places: joins.Join(done={*places}))


def forget_zeros(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(packed_body.Body, "hides", lambda self, value: False)


@pytest.mark.parametrize(
    ("network", "fault"),
    [
        (Masked("absolute", "cls"), forget_first_token),
        (Biased(), believe_weights),
        (Masked("absolute", "summed"), trust_sums),
        (Masked(), forget_zeros),
        (Masked(), forget_order),
    ],
)
def test_a_planted_fault_fails_the_proof(
    network: Encoder, fault: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    onnx.save(export(network), tmp_path / "in.onnx")
    fault(monkeypatch)
    with pytest.raises(ProofFailed):
        rewrite_file(tmp_path / "in.onnx", tmp_path / "o.onnx", Request(packed=MASK))
    assert not (tmp_path / "o.onnx").exists()
