"""Packed files answer as the originals for masks of every kind, and compute no hidden token."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from foreign_networks import DIM, VOCABULARY, Encoder, export, model, proof_fails, session_of, written
from masked_networks import (
    LONGEST,
    MASK,
    SIZES,
    Disentangled,
    Divided,
    Grouped,
    Joined,
    Masked,
    Rectified,
    Shallow,
    Sunk,
    Turned,
    check,
    feeds,
    hiding,
)
from test_pack_faults import forget_first_token

from export.compiler.analyses import token_mixing
from export.compiler.errors import NothingToRewrite
from export.compiler.pipeline import rewrite
from export.compiler.proof.masks import MANY

FORMS = ["absolute", "counted", "rotary", "relative", "causal", "local"]
POOLS = ["mean", "cls", "last", "shown", "max", "sparse"]
# Each form and each pool once, and some with the newer exporter, too; random encoders join them in other ways.
NETWORKS = [(*each, "old", 17) for each in zip(FORMS, POOLS[1:] + POOLS[:1], strict=True)]
NETWORKS += [("counted", "cls", "new", 20), ("rotary", "last", "new", 20), ("relative", "shown", "new", 20)]
NETWORKS += [("absolute", "weighed", "old", 17), ("gathered", "mean", "old", 17), ("selected", "mean", "old", 17)]
HIDDEN = VOCABULARY + 1000  # no row of the table: an error in the original


@pytest.mark.slow
@pytest.mark.parametrize(("form", "pool", "exporter", "opset"), NETWORKS)
def test_no_mask_changes_an_answer(form: str, pool: str, exporter: str, opset: int) -> None:
    """Other tests give the newer exporter two blocks.

    A single block whose last token reads relative positions is refused: its row of biases may be a hidden token's.
    """
    depth = 2 if exporter == "old" or (form, pool) == ("relative", "shown") else 1
    proto = export(Masked(form, pool, depth), exporter, opset)
    if (pool, exporter) == ("shown", "old"):  # of an empty text it takes the last token of the text before
        with pytest.raises(NothingToRewrite, match=token_mixing.OF_ANOTHER):
            rewrite(model(proto), sizes=SIZES, packed=MASK)
        return
    packed = rewrite(model(proto), sizes=SIZES, packed=MASK)
    assert packed.steps[-1].sites
    check(proto, packed.model)


PACKED = [
    *((Masked(), "old", opset) for opset in (11, 12, 13)),
    (Masked("absolute", "filled", depth=1), "old", 17),
    (Masked("absolute", "put", depth=1), "old", 17),
    (Masked("absolute", "placed", depth=1), "new", 17),  # the older exporter writes it in shapes that do not fit
    *((Joined("causal", pool), "old", 17) for pool in ("mean", "last")),
    *((Disentangled(pool), "old", 17) for pool in ("mean", "last")),
    (Disentangled(depth=1), "new", 18),
    (Divided(2.8), "old", 17),
    (Divided(2.8, "last", depth=1), "old", 17),
    (Sunk(), "old", 17),
    (Sunk(pool="last", depth=1), "old", 17),
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


def test_hidden_tokens_of_an_output_become_zero(tmp_path: Path) -> None:
    proto = export(Masked("absolute", "hidden"))
    packed = rewrite(model(proto), ["y[mask]"], sizes=SIZES, packed=MASK).model
    check(proto, packed, rounds=6, shown=True)
    made = written(proto, tmp_path, "y[mask]", packed=MASK)
    assert made.manifest["packed"] == MASK
    assert "masks of every kind" in made.manifest["proof_inputs"]
    assert made.proofs[0].error < 1e-12


@pytest.mark.slow
def test_a_last_token_that_is_gathered_of_all_features_is_packed_and_cut() -> None:
    proto = export(Masked("causal", "gathered"))
    packed = rewrite(model(proto), sizes=SIZES, packed=MASK)
    assert any("chosen at run time" in site.message for step in packed.steps for site in step.sites)
    check(proto, packed.model, rounds=6)


def test_a_concat_with_an_input_without_elements_is_packed() -> None:
    proto = export(Turned("causal", "gathered", depth=1))
    assert any(node.op_type == "Concat" and len(node.input) == 2 for node in proto.graph.node)
    check(proto, rewrite(model(proto), sizes=SIZES, packed=MASK).model, rounds=6)


def test_a_row_that_sees_no_token_is_that_of_a_text_computed_whole(tmp_path: Path) -> None:
    """The first token reads itself alone; where it is hidden, the lowest float16 hides nothing."""
    assert written(export(Shallow("causal", "cls", depth=1)), tmp_path, packed=MASK).proofs[0].error < 1e-12


@pytest.mark.slow
def test_grouped_queries_of_texts_without_tokens_give_no_rows() -> None:
    """And the mask's length is a quotient."""
    proto = export(Grouped("causal", "hidden", depth=1), "new", 20)
    assert any(node.op_type == "Div" and "floordiv" in node.output[0] for node in proto.graph.node)
    packed = rewrite(model(proto), ["y[mask]"], sizes=SIZES, packed=MASK).model
    check(proto, packed, rounds=6, shown=True)
    before, after = session_of(proto), session_of(packed)
    given = feeds(2, 0, 0, np.ones((2, 0), np.int64))
    assert after.run(None, given)[0].shape == before.run(None, given)[0].shape == (2, 0, DIM)


def test_texts_without_tokens_get_the_answers_of_the_network_as_it_was() -> None:
    proto = export(Rectified(depth=1))
    packed = rewrite(model(proto), sizes=SIZES, packed=MASK).model
    check(proto, packed, rounds=6)
    given = feeds(2, 0, 0, np.ones((2, 0), np.int64))
    np.testing.assert_array_equal(session_of(packed).run(None, given)[0], session_of(proto).run(None, given)[0])


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
def test_inputs_may_name_their_axes_differently(pool: str, tmp_path: Path) -> None:
    """So does torch.onnx with dynamic axes without names."""
    proto = export(Masked("absolute", pool))
    for value in proto.graph.input:
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            dim.dim_param = f"{value.name}_{axis}"
    check(proto, written(proto, tmp_path, packed=MASK).rewritten.model, rounds=6)


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
    before, after = (session_of(each) for each in (proto, written(proto, tmp_path, *read, packed=MASK).rewritten.model))
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


@pytest.mark.parametrize("kind", ["int8", "float16"])
def test_a_mask_may_be_of_any_type(kind: str) -> None:
    """ONNX Runtime's NonZero takes few of them. Random encoders have bool, int32, int64 and float32."""
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


@pytest.mark.parametrize(("pool", "read"), [("mean", []), ("cls", []), ("hidden", ["y[mask]"])])
def test_a_mask_may_be_true_for_hidden_tokens(
    pool: str, read: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proto = hiding(export(Masked("absolute", pool, depth=1)))
    before, after = (session_of(each) for each in (proto, written(proto, tmp_path, *read, packed=MASK).rewritten.model))
    for texts, length in ((1, 1), (6, 7), (3, 1), MANY):
        given = feeds(texts, length, 0)
        shown = given[MASK][..., None] if read else 1
        given[MASK] = given[MASK] == 0
        np.testing.assert_allclose(after.run(None, given)[0], before.run(None, given)[0] * shown, atol=2e-5)
    if pool == "cls":
        forget_first_token(monkeypatch)
        proof_fails(proto, tmp_path, packed=MASK)
    monkeypatch.setattr("export.rewrite_file.hides_tokens", lambda original, packed: False)
    with pytest.raises(NothingToRewrite, match="hidden tokens may have weights"):
        written(proto, tmp_path, *read, packed=MASK)


@pytest.mark.parametrize(("read", "places"), [("y[:,1]", 1), ("y[:,-2]", -2), ("y[:,[-3,0,-1]]", [-3, 0, -1])])
def test_tokens_that_are_picked_by_index_are_packed(read: str, places: Any) -> None:
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
