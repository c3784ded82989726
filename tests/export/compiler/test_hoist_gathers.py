"""A row chosen at run time, as by decoders that classify by their last token that is no padding."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from foreign_networks import VOCABULARY, Encoder, answers, check_equal, export, manifest_of, parse

from export.compiler.errors import NothingToRewrite
from export.compiler.pipeline import Rewritten, rewrite
from export.compiler.proof.runner import Runner

SIZES = {"batch": 1, "seq": 32}
CHOSEN = "computed only for a row that is chosen at run time"


@pytest.mark.slow
@pytest.mark.parametrize(("joined", "opset"), [(False, 14), (True, 17)])
def test_the_last_token_that_is_no_padding(joined: bool, opset: int, tmp_path: Path) -> None:
    onnx.save(export(Encoder("last", joined), opset=opset), path := tmp_path / "model.onnx")
    manifest = manifest_of(path, "-o", out := tmp_path / "out.onnx")
    assert sum(site["change"] == CHOSEN for site in manifest["sites"]["read-rows"]) >= 5
    assert manifest["macs"]["read-rows"] < 0.75 * manifest["macs"]["before"]
    plain, rewritten = Runner(path), Runner(out)
    for batch, seq in [(1, 1), (1, 2), (2, 2), (3, 5), (2, 32)]:
        ids = np.random.default_rng(seq).integers(1, VOCABULARY, (batch, seq))
        for row in range(batch):
            ids[row, max(1, seq - 2 * row) :] = 0  # each ends elsewhere
        given = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
        expected, found = plain(given)["y"], rewritten(given)["y"]
        assert found.shape == expected.shape
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


PAIRS = """
<ir_version: 8, opset_import: ["": 18]> g (float[b, n, 4] x, int64[{size}] chosen) => (float[b, 3] y{more}) {{
    shape = Shape(x) size = Gather(shape, zero) length = Gather(shape, one) least = Min(length, longest)
    texts = Unsqueeze(size, front) lines = Unsqueeze(least, front) target = Concat <axis = 0> ({target})
    part = Reshape(x, target) h = MatMul({rows}, w) counted = Range({start}, size, one)
    column = Unsqueeze(counted, end) rows = Unsqueeze(chosen, end) pairs = Concat <axis = -1> ({pairs})
    y = GatherND(h, pairs)
}}
"""


def pairs(
    size: str = "b",
    start: str = "zero",
    order: str = "column, rows",
    more: str = "",
    rows: str = "x",
    target: str = "texts, lines, width",
    text: str = PAIRS,
) -> ir.Model:
    """`rows="part"`: at most 512, as GPT-Neo reshapes them beside a mask cut from a table."""
    numbers = {"zero": np.array(0), "one": np.array(1), "longest": np.array(512)}
    numbers |= {"end": np.array([-1]), "front": np.array([0]), "width": np.array([4])}
    weights = np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32)
    return parse(
        text.format(size=size, start=start, pairs=order, more=more, rows=rows, target=target), w=weights, **numbers
    )


FLAT = """
<ir_version: 8, opset_import: ["": 18]> g (float[b, n, 4] x, int64[b] chosen) => (float[b, 4] y) {
    turned = Transpose <perm = [0, 2, 1]> (x) scores = MatMul(x, turned) mixed = MatMul(scores, x)
    h = MatMul(mixed, w) shape = Shape(h) size = Gather(shape, zero) length = Gather(shape, one)
    counted = Range(zero, size, one) starts = Mul(counted, length) places = Add(chosen, starts)
    flat = Flatten <axis = 2> (h) y = Gather(flat, places)
}
"""


STARTS = "counted = Range(zero, size, one) starts = Mul(counted, length)"


@pytest.mark.parametrize("sizes", [{"b": "b", "n": "n", STARTS: STARTS}, {"b": "3", "n": "5", STARTS: ""}])
def test_an_index_into_the_rows_of_all_texts_may_be_another_text_s_row(sizes: dict[str, str]) -> None:
    """As PyTorch's older exporter picks the last token: that of an empty text is the last of the text before."""
    numbers = {"zero": np.array(0), "one": np.array(1)} | ({} if sizes[STARTS] else {"starts": np.array([0, 5, 10])})
    weights = np.random.default_rng(0).standard_normal((4, 4)).astype(np.float32)
    head = FLAT.replace("[b", f"[{sizes['b']}").replace(", n,", f", {sizes['n']},").replace(STARTS, sizes[STARTS])
    original = parse(head, w=weights, **numbers)
    rewritten = rewrite(original, sizes={"b": 2, "n": 16})
    assert changes(rewritten) == [CHOSEN] * 3
    x = np.random.default_rng(1).standard_normal((3, 5, 4))
    for chosen in ([4, 0, 2], [-1, -1, -1], [7, 5, -8], [14, -5, -15]):
        feeds = {"x": x, "chosen": np.array(chosen)}
        check_equal(original, rewritten.model, feeds)
    with pytest.raises(Exception, match="out of"):
        answers(rewritten.model, {"x": x.astype(np.float32), "chosen": np.array([15, 0, 0])})


SEVERAL = """
<ir_version: 8, opset_import: ["": 18]> g (float[b, n, 4] x, int64[b, k] chosen) => (float[b, k, 4] y) {
    turned = Transpose <perm = [0, 2, 1]> (x) scores = MatMul(x, turned) mixed = MatMul(scores, x)
    shape = Shape(x) length = Gather(shape, one) numbers = Range(zero, length, one)
    real = Cast <to = 1> (numbers) ramp = Unsqueeze(real, end) ramped = Mul(mixed, ramp) h = MatMul(ramped, w)
    column = Unsqueeze(chosen, end)
    PICKED
}
"""
LENGTH = "lengths = Gather(shape, one) length = Squeeze(lengths, zeroth)"
SINGLE = {  # of each text the row `own` (b, 1)
    "as sentence-transformers": "once = Expand(own, ones) wide = Tile(once, repeats) places = Unsqueeze(wide, one)",
    "without a second axis": "flat = Squeeze(own, end) row = Unsqueeze(flat, ends) places = Expand(row, features)",
}


@pytest.mark.parametrize("repeated", SINGLE.values(), ids=SINGLE)
def test_a_row_that_is_repeated_along_all_features(repeated: str) -> None:
    numbers = {"zero": np.array(0), "one": np.array([1]), "end": np.array([-1]), "ends": np.array([1, 2])}
    numbers["zeroth"] = np.array([0])
    numbers |= {"features": np.array([1, 1, 4]), "ones": np.array([1, 1]), "repeats": np.array([1, 4])}
    weights = np.random.default_rng(0).standard_normal((4, 4)).astype(np.float32)
    text = SEVERAL.replace("int64[b, k] chosen", "int64[b, 1] own").replace("float[b, k, 4] y", "float[b, 1, 4] y")
    text = text.replace("column = Unsqueeze(chosen, end)", "").replace("length = Gather(shape, one)", LENGTH)
    original = parse(
        text.replace("PICKED", f"{repeated} y = GatherElements <axis = 1> (h, places)"), w=weights, **numbers
    )
    rewritten = rewrite(original, sizes={"b": 2, "n": 16})
    assert changes(rewritten) == [CHOSEN] * 3
    for chosen in ([[4], [1]], [[-1], [-5]]):
        feeds = {"x": np.random.default_rng(1).standard_normal((2, 5, 4)), "own": np.array(chosen)}
        check_equal(original, rewritten.model, feeds)


BY_ELEMENTS = "wide = Expand(column, features) y = GatherElements <axis = 1> (h, wide)"
BY_PAIRS = """
    batch = Gather(shape, zero) texts = Range(zero, batch, one) first = Unsqueeze(texts, end)
    size = Shape(chosen) repeated = Expand(first, size) last = Unsqueeze(repeated, end)
    pairs = Concat <axis = -1> (last, column) y = GatherND(h, pairs)"""


@pytest.mark.parametrize("picked", [BY_ELEMENTS, BY_PAIRS])
def test_several_rows_of_each_text(picked: str) -> None:
    numbers = {"zero": np.array(0), "one": np.array(1), "end": np.array([-1]), "features": np.array([1, 1, 4])}
    weights = np.random.default_rng(0).standard_normal((4, 4)).astype(np.float32)
    original = parse(SEVERAL.replace("PICKED", picked), w=weights, **numbers)
    rewritten = rewrite(original, sizes={"b": 2, "n": 16, "k": 3})
    assert changes(rewritten) == [CHOSEN.replace("a row that is", "k rows that are")] * 3
    with pytest.raises(NothingToRewrite, match="picks k of n rows, at the sizes assumed not fewer: --dims k=8"):
        rewrite(original, sizes={"b": 2, "n": 16, "k": 16})
    x = np.random.default_rng(1).standard_normal((2, 5, 4))
    for chosen in ([[4, 0, 4], [1, 2, 3]], [[-1], [-5]], [[0, 1, 2, 3, 4, 0, 1]] * 2, np.zeros((2, 0))):
        feeds = {"x": x, "chosen": np.asarray(chosen, np.int64)}
        check_equal(original, rewritten.model, feeds)


def changes(done: Rewritten) -> list[str]:
    return [site.message for step in done.steps if step.name == "read-rows" for site in step.sites]


@pytest.mark.parametrize("rows", ["x", "part"])
def test_a_product_before_a_choice_is_computed_for_it(rows: str) -> None:
    assert changes(rewrite(pairs(rows=rows))) == [CHOSEN]


def test_a_choice_moves_through_a_graph_deeper_than_python_s_stack() -> None:
    deep = " ".join(f"z{number} = Tanh({f'z{number - 1}' if number else 'm'})" for number in range(400))
    text = PAIRS.replace("h = MatMul({rows}, w)", f"m = MatMul({{rows}}, w) {deep} h = Identity(z399)")
    assert changes(rewrite(pairs(text=text))) == [CHOSEN]


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (pairs(order="rows, column"), "y (GatherND): picks at run time of what MatMul h makes; followed are GatherND"),
        (pairs(start="one"), "y (GatherND): picks at run time of what MatMul h makes"),  # texts from the second on
        (pairs(more=", float[b, n, 3] h"), "y (graph output): no multiplying operator computes more"),
        (pairs(rows="part", target="end, lines, width"), ""),  # rows of another text
        (
            pairs(text=PAIRS.replace('"": 18', '"": 11')),
            "y (GatherND): picks at run time, which is followed from opset",
        ),
    ],
)
def test_gathers_that_cannot_be_hoisted_stay_and_are_named(model: ir.Model, reason: str) -> None:
    with pytest.raises(NothingToRewrite) as refused:
        rewrite(model)
    assert f"read-rows: {reason}" in str(refused.value)
