"""Inputs with an axis of size 0, wherever the original answers them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest
from foreign_networks import Encoder, Vision, check_equal, export, manifest_of, parse, run, wrote
from numpy.typing import NDArray

from export.compiler.analyses import bias_shifts
from export.compiler.errors import NotSupported, ProcessEnded, ProofFailed
from export.compiler.passes import absorb_queries
from export.compiler.pipeline import optimise
from export.compiler.proof import compare
from export.compiler.proof.compare import Errors, prove
from export.compiler.proof.inputs import Feeds
from export.compiler.proof.original_file import Original
from export.compiler.proof.rounds import RoundOptions, rounds
from export.compiler.proof.runner import Runner, answers_apart

HEAD = '<ir_version: 8, opset_import: ["": 17]> g (float[b, 2, 3] x)'


@pytest.mark.slow
@pytest.mark.parametrize("network", [Encoder(), Vision(rows=2)])
def test_an_empty_batch_gets_an_empty_answer(network: Encoder | Vision, tmp_path: Path) -> None:
    ir.save(ir.from_proto(export(network, "new", 18)), tmp_path / "in.onnx")
    manifest = manifest_of(tmp_path / "in.onnx", "-o", tmp_path / "out.onnx", "--require", "absorb-queries")
    assert "batch=0" in manifest["proof_inputs"]
    shapes = {"input_ids": (0, 5), "attention_mask": (0, 5), "image": (0, 3, 16, 16)}
    session = ort.InferenceSession(tmp_path / "out.onnx")
    feeds = {
        value.name: np.zeros(shapes[value.name], np.float32 if value.name == "image" else np.int64)
        for value in session.get_inputs()
    }
    assert [array.shape for array in session.run(None, feeds)] == [(0, 3)]


GUARDED = """
<ir_version: 8, opset_import: ["": 18]> g (float[b, n, 8] x, bool[b, 1, 1, n] hidden) => (float[b, 8] y) {
    q = MatMul(x, w0) k = MatMul(x, w1) plain = MatMul(x, w2) v = Add(plain, bias)
    q4 = Reshape(q, heads) k4 = Reshape(k, heads) v4 = Reshape(v, heads)
    qh = Transpose<perm = [0, 2, 1, 3]>(q4) kh = Transpose<perm = [0, 2, 3, 1]>(k4)
    vh = Transpose<perm = [0, 2, 1, 3]>(v4)
    scores = MatMul(qh, kh) masked = Where(hidden, low, scores) raw = Softmax<axis = -1>(masked)
    nan = IsNaN(raw) weights = Where(nan, zero, raw) mixed = MatMul(weights, vh)
    back = Transpose<perm = [0, 2, 1, 3]>(mixed) joined = Reshape(back, tokens) y = Gather<axis = 1>(joined, first)
}
"""


def test_an_empty_batch_passes_the_guard_of_masked_rows(tmp_path: Path) -> None:
    """A value's bias is multiplied by the sum of the weights, which ONNX Runtime gets wrong for an empty batch."""
    rng = np.random.default_rng(0)
    weights = {name: rng.standard_normal((8, 8)).astype(np.float32) for name in ("w0", "w1", "w2")}
    numbers = {"zero": np.float32(0), "low": np.float32(-np.inf), "first": np.array(0)}
    shapes = {"heads": np.array([0, 0, 2, 4]), "tokens": np.array([0, 0, 8])}
    bias = rng.standard_normal(8).astype(np.float32)
    ir.save(parse(GUARDED, **weights, **numbers, **shapes, bias=bias), tmp_path / "in.onnx")
    manifest = manifest_of(tmp_path / "in.onnx", "-o", tmp_path / "out.onnx", "--require", "absorb-queries")
    assert "b=0" in manifest["proof_inputs"]
    before, after = Runner(tmp_path / "in.onnx"), Runner(tmp_path / "out.onnx")
    feeds = {"x": rng.standard_normal((2, 5, 8)).astype(np.float32), "hidden": np.zeros((2, 1, 1, 5), bool)}
    feeds["hidden"][1] = True  # a row that the guard makes 0
    np.testing.assert_allclose(after(feeds)["y"], before(feeds)["y"], atol=1e-5)


def test_an_empty_batch_is_compared_where_a_part_is_read(tmp_path: Path) -> None:
    text = '<ir_version: 8, opset_import: ["": 17]> g (float[b, n, 4] x) => (float[b, n, 4] y) { y = MatMul(x, w) }'
    ir.save(parse(text, w=np.eye(4, dtype=np.float32)), tmp_path / "in.onnx")
    manifest = manifest_of(tmp_path / "in.onnx", "-o", tmp_path / "out.onnx", "--read", "y[:,0]")
    assert "b=0" in manifest["proof_inputs"]


POOLED = """
<ir_version: 8, opset_import: ["": 18]> g (float[b, n, 8] x{asked}) => (float y) {{
    {tokens} k = MatMul(t, w1) v0 = MatMul(t, w2) v = Add(v0, bias)
    q4 = Reshape(q, heads) k4 = Reshape(k, heads) v4 = Reshape(v, heads)
    qh = Transpose<perm = [0, 2, 1, 3]>(q4) kh = Transpose<perm = [0, 2, 3, 1]>(k4)
    vh = Transpose<perm = [0, 2, 1, 3]>(v4)
    {attention}
    back = Transpose<perm = [0, 2, 1, 3]>(mixed) joined = Reshape(back, wide) {out} }}
"""
APART = "scores = MatMul(qh, kh) weights = Softmax<axis = -1>(scores) mixed = MatMul(weights, vh)"
MASKED = APART.replace("weights = Softmax<axis = -1>(scores)", "shown = Add(scores, mask) weights = Softmax(shown)")
JOINED_HEADS = """count = Shape<start = 1, end = 2>(x) texts = Shape<start = 0, end = 1>(x) rows = Mul(texts, two)
    by_keys = Concat<axis = 0>(rows, four, count) kj = Reshape<allowzero = 1>(kh, by_keys)
    by_values = Concat<axis = 0>(rows, count, four) vj = Reshape<allowzero = 1>(vh, by_values)
    qj = Reshape(qh, asked_rows) scores = MatMul(qj, kj) weights = Softmax<axis = -1>(scores)
    mixed3 = MatMul(weights, vj) mixed = Reshape(mixed3, apart)"""
SHARED = """size = Shape<start = 0, end = 1>(x) sizes = Concat<axis = 0>(size, rest) learned = Expand(queries, sizes)
    q = MatMul(learned, w0) t = Identity(x)"""
OWN = "q = MatMul(asked, w0) t = Identity(x)"
PROJECTED, JOINED = "o = MatMul(joined, narrow) y = Add(o, narrow_row)", "y = Relu(joined)"
WIDE = "o = MatMul(joined, w3) y = Add(o, row)"
POOLS = [
    {"tokens": SHARED, "out": PROJECTED, "queries": 1},
    {"tokens": SHARED, "out": JOINED, "queries": 1},
    {"tokens": SHARED, "out": WIDE, "queries": 1},
    {"tokens": SHARED, "out": PROJECTED, "queries": 2},
    {"tokens": OWN, "out": PROJECTED, "queries": 1},
    {"tokens": OWN, "out": JOINED, "queries": 2},
    {"tokens": OWN, "out": PROJECTED, "queries": 1, "attention": JOINED_HEADS},  # as TrOCR's decoder
]


def pooled(folder: Path, tokens: str, out: str, queries: int, attention: str = APART) -> Path:
    """An attention with `queries` of its own pools any number of tokens, without a token into the bias alone."""
    asked = f", float[b, {queries}, 8] asked" if tokens == OWN else ""
    asked += ", float[c, 1, 1, m] mask" if attention == MASKED else ""
    rng = np.random.default_rng(0)
    weights = {f"w{place}": rng.standard_normal((8, 8)).astype(np.float32) for place in range(5)}
    rows = {name: rng.standard_normal(8).astype(np.float32) for name in ("bias", "row", "early")}
    narrow = {"narrow": weights["w3"][:, :3], "narrow_row": rows["row"][:3]}
    shapes = {"heads": [0, 0, 2, 4], "wide": [0, 0, 8], "rest": [queries, 8]}
    shapes |= {"two": [2], "four": [4], "asked_rows": [-1, 1, 4], "apart": [-1, 2, 1, 4]}
    learned = rng.standard_normal((1, queries, 8)).astype(np.float32)
    text = POOLED.format(asked=asked, tokens=tokens, attention=attention, out=out)
    ir.save(parse(text, **weights, **rows, **narrow, **shapes, queries=learned), folder / "in.onnx")
    return folder / "in.onnx"


@pytest.mark.parametrize("form", POOLS)
def test_tokens_pooled_by_an_attention_may_be_none(
    form: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = pooled(tmp_path, **form)
    assert "n=0" in manifest_of(file, "-o", tmp_path / "out.onnx", "--require", "absorb-queries")["proof_inputs"]
    monkeypatch.setattr(absorb_queries, "may_be_empty", lambda shapes, size: False)
    wrong = run(file, "-o", tmp_path / "wrong.onnx")
    assert wrong.exit_code
    assert "n=0" in wrong.output
    assert not (tmp_path / "wrong.onnx").exists()


@pytest.mark.parametrize("out", [PROJECTED, JOINED])
@pytest.mark.parametrize("queries", [1, 2])
def test_a_mask_whose_axes_have_other_names_may_have_more_texts(queries: int, out: str, tmp_path: Path) -> None:
    original = ir.load(pooled(tmp_path, SHARED, out, queries, MASKED))
    done = optimise(original)
    assert "absorb-queries" in done.applied
    rng = np.random.default_rng(0)
    for texts, masks, columns in [(3, 1, 5), (1, 3, 5), (2, 2, 1), (3, 3, 5)]:
        mask = -1e4 * rng.integers(0, 2, (masks, 1, 1, columns)).astype(np.float32)
        check_equal(original, done.model, {"x": rng.standard_normal((texts, 5, 8)).astype(np.float32), "mask": mask})


def test_a_bias_of_tokens_that_may_be_none_is_not_carried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    biased = SHARED.replace("t = Identity(x)", "made = MatMul(x, w4) t = Add(made, early)")
    file = pooled(tmp_path, biased, PROJECTED, 1)
    result = wrote(file, "-o", tmp_path / "out.onnx", "--json")
    assert "pools the sum, perhaps over no token" in result.output
    monkeypatch.setattr(bias_shifts, "may_sum_to_zero", lambda shapes, weights: False)
    wrong = run(file, "-o", tmp_path / "wrong.onnx")
    assert wrong.exit_code
    assert "n=0: float32" in wrong.output


TOKENS = """size = Shape<start = 0, end = 1>(x) sizes = Concat<axis = 0>(size, rest) token = Expand(cls, sizes)
    c = Concat<axis = 1>(token, x) j = MatMul(c, joint) h = Reshape(j, apart)
    t = Transpose<perm = [2, 0, 3, 1, 4]>(h)"""
RESHAPED = [  # tokens that no input counts; a -1 that would move, so that the Reshapes stay; free features
    ("split-products", f"{TOKENS} q = Gather<axis = 0>(t, zero) k = Gather<axis = 0>(t, one) y = Add(q, k)"),
    (
        "tidy",
        """turned = Transpose<perm = [0, 2, 1]>(x) size = Shape<start = 0, end = 2>(x)
        sizes = Concat<axis = 0>(size, eight) f = Reshape(turned, sizes) y = Reshape(f, quarters)""",
    ),
    ("tidy", "r = Gather<axis = 1>(x, first) m = MatMul(r, w) s = Mul(z, m) y = Gather<axis = 1>(s, zero)"),
]


@pytest.mark.parametrize(("step", "nodes"), RESHAPED)
def test_an_empty_batch_passes_each_new_reshape(step: str, nodes: str) -> None:
    rng = np.random.default_rng(0)
    shapes = {"cls": (1, 1, 8), "joint": (8, 16), "w": (8, 1)}
    numbers = {"rest": [1, 8], "apart": [0, 0, 2, 2, 4], "zero": 0, "one": 1, "first": [0], "eight": [8]}
    original = parse(
        f'<ir_version: 8, opset_import: ["": 20]> g (float[b, n, 8] x, float[b, 1, d] z) => (float y) {{ {nodes} }}',
        **{name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()},
        **numbers,
        quarters=[-1, 0, 2, 4],
    )
    done = optimise(original, passes=[step])
    assert done.applied == (() if "quarters" in nodes else (step,))
    before, after = (ort.InferenceSession(ir.to_proto(each).SerializeToString()) for each in (original, done.model))
    for batch in (0, 3):
        feeds = {"x": rng.standard_normal((batch, 5, 8)), "z": rng.standard_normal((batch, 1, 6))}
        read = {value.name: feeds[value.name].astype(np.float32) for value in after.get_inputs()}
        np.testing.assert_allclose(after.run(None, read)[0], before.run(None, read)[0], rtol=0, atol=1e-5)


def both(folder: Path, before: str, after: str, **weights: NDArray[Any]) -> tuple[Errors, list[str]]:
    """Compares two graphs; also returns what was left."""
    original, rewritten = parse(before, **weights), parse(after, **weights)
    ir.save(original, folder / "before.onnx")
    ir.save(rewritten, folder / "after.onnx")
    own, left = Errors("float32", "the original"), list[str]()
    drawn = rounds(Original(folder / "before.onnx"), original.graph, RoundOptions(), warn=left.append)
    prove(drawn, rewritten, Runner(folder / "after.onnx"), own, warn=left.append)
    return own, left


SIZES = {"sizes": np.array([0, -1], np.int64), "axes": np.array([1, 2], np.int64)}


def test_a_file_that_fails_on_what_the_original_answers_fails_the_proof(tmp_path: Path) -> None:
    flat, any_size = (f"{HEAD} => (float[b, 6] y) {{ y = {how} }}" for how in ("Flatten(x)", "Reshape(x, sizes)"))
    (whole, none), (less, left) = both(tmp_path, flat, flat, **SIZES), both(tmp_path, any_size, any_size, **SIZES)
    assert (whole.rounds, none, len(left)) == (less.rounds + 1, [], 1)
    assert left[0].startswith("Not compared, drawn at b=0: the original gives no answer: expected the file to run on")
    with pytest.raises(ProofFailed, match="drawn at b=0, which the original answers"):
        both(tmp_path, flat, any_size, **SIZES)


def test_answers_of_another_shape_fail_the_proof(tmp_path: Path) -> None:
    """Both sum over all elements, of which there are none."""
    before, after = (
        f"{HEAD} => (float[p] y) {{ s = ReduceSum<keepdims = 0>(x, axes) z = {term} y = Mul(s, z) }}"
        for term in ("Identity(s)", "ReduceMax<axes = [0], keepdims = 1>(s)")
    )
    assert both(tmp_path, before, before, **SIZES)[0].rounds
    with pytest.raises(ProofFailed, match="float32: output 0: expected an error of at most 1e-05, found "):
        both(tmp_path, before, after, **SIZES)


def test_an_answer_of_another_rank_is_none(tmp_path: Path) -> None:
    """ONNX Runtime's ArgMax of no element keeps the axes."""
    head = '<ir_version: 8, opset_import: ["": 17]> g (float[b, n] x) => (float[b] y)'
    before = f"{head} {{ last = ArgMax<axis = -1, keepdims = 0>(x) y = Cast<to = 1>(last) }}"
    after = f"{head} {{ last = ArgMax<axis = 1>(x) row = Reshape(last, all) y = Cast<to = 1>(row) }}"
    own, left = both(tmp_path, before, after, all=np.array([-1]))
    assert own.rounds
    assert [line.rpartition(": ")[2] for line in left] == ["expected outputs of ranks [1], found [2]"]


SUMMED = """<ir_version: 8, opset_import: ["": 17]> g (float[b, n, 3] x) => (float[b, 3] y) {
    s = ReduceSum<keepdims = 0>(x, axis) """
BIAS_OF_NO_TOKEN = """size = Shape<start = 1, end = 2>(x) float = Cast<to = 1>(size) some = Min(float, unit)
    less = Sub(unit, some) y = Add(s, less) }"""


def test_an_answer_without_a_number_is_compared(tmp_path: Path) -> None:
    """A text of one token has no second row."""
    head = HEAD.replace("2, 3]", "n, 3]")
    before = f"{head} => (float y) {{ y = Slice(x, one, two, one) }}"
    after = f"{head} => (float y) {{ both = Slice(x, zero, two, one) y = Slice(both, last, two, one) }}"
    given = {"zero": np.array([0]), "one": np.array([1]), "two": np.array([2]), "last": np.array([-1])}
    with pytest.raises(ProofFailed, match=r"drawn at b=2, n=1: .* expected shape \(2, 0, 3\), found \(2, 1, 3\)"):
        both(tmp_path, before, after, **given)


def test_a_sum_over_no_token_is_compared(tmp_path: Path) -> None:
    given = {"axis": np.array([1]), "unit": np.ones(1, np.float32)}
    right = f"{SUMMED} y = Identity(s) }}"
    assert both(tmp_path, right, right, **given)[0].rounds
    with pytest.raises(ProofFailed, match=r"^drawn at b=\d, n=0: float32: .* found 1.0e\+00; --dims NAME=SIZE draws"):
        both(tmp_path, right, SUMMED + BIAS_OF_NO_TOKEN, **given)


def convolved(declared: str) -> str:
    """A sum whose terms have the same batch, as `declared` says; ONNX Runtime's inference loses it at the Reshape."""
    return f"""<ir_version: 8, opset_import: ["": 17]> g (float[b, 32, 8, 8] x) => (float[b, 32, 8, 8] y) {declared} {{
        size = Shape<start = 0, end = 1>(x) sizes = Concat<axis = 0>(size, rest) t = Reshape(x, sizes)
        left = Conv(t, w) right = MaxPool<kernel_shape = [1, 1]>(x) y = Add(left, right) }}"""


def ended(runner: Runner, feeds: Feeds) -> NoReturn:
    raise ProcessEnded("the end")


def test_an_error_of_onnx_runtime_s_own_layout_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = {"w": np.eye(32, dtype=np.float32)[:, :, None, None], "rest": np.array([32, 8, 8])}
    before, after = convolved("<float[b, 32, 8, 8] t>"), convolved("")
    own, left = both(tmp_path, before, after, **weights)
    assert own.proof().error == 0
    assert len(left) == 1
    assert left[0].startswith(
        "Equal only without ONNX Runtime's layout of convolutions, drawn at b=0: with it expected"
    )
    with pytest.raises(NotSupported, match="Reshape"):
        answers_apart(Runner(tmp_path / "after.onnx"), {"x": np.ones((0, 32, 8, 8), np.float32)})
    monkeypatch.setattr(compare, "answers_apart", ended)
    with pytest.raises(ProofFailed, match="which the original answers: the end"):
        both(tmp_path, before, after, **weights)


NO_NUMBER = "Fails, drawn at b=2, n=0, where the original answers without a number: expected the file to run"
ONLY_PLAIN = "Equal only without ONNX Runtime's optimiser, drawn at b=0, n=2: with it expected the file to run"
UNLIKE = [  # two graphs that differ only on empty inputs, and what is told
    ("y = Slice(x, last, far, one)", "y = Gather<axis = 1>(x, last)", NO_NUMBER),
    (  # where a single size is not the source's own, the optimiser writes it as -1
        "y = Unsqueeze(x, two)",
        "l = Shape(x) g = Gather(l, zero) b = Unsqueeze(g, first) n = Shape(z) s = Concat<axis = 0>(b, n, one, three) "
        "y = Reshape(x, s)",
        ONLY_PLAIN,
    ),
]


@pytest.mark.parametrize(("before", "after", "said"), UNLIKE)
def test_what_differs_only_on_an_empty_input_is_told(before: str, after: str, said: str, tmp_path: Path) -> None:
    head = HEAD.replace("2, 3] x)", "n, 3] x, float[n] z) => (float y)")
    graphs = [f"{head} {{ {nodes} }}" for nodes in (before, after)]
    numbers = {"one": np.array([1]), "three": np.array([3]), "last": np.array([-1]), "far": np.array([1 << 40])}
    numbers |= {"zero": np.array(0), "first": np.array([0]), "two": np.array([2])}
    own, left = both(tmp_path, *graphs, **numbers)
    assert own.proof().error == 0
    assert [line[: len(said)] for line in left] == [said]


def test_an_abort_of_onnx_runtime_is_no_answer(tmp_path: Path) -> None:
    """Its GRU divides by the number of steps."""
    network = parse(
        """<ir_version: 8, opset_import: ["": 17]> g (float[s, b, 2] x) => (float[s, 1, b, 3] y) {
            y = GRU<hidden_size = 3>(x, w, r) }""",
        w=np.ones((1, 9, 2), np.float32),
        r=np.ones((1, 9, 3), np.float32),
    )
    ir.save(network, tmp_path / "gru.onnx")
    runner = Runner(tmp_path / "gru.onnx")
    assert answers_apart(runner, {"x": np.ones((1, 2, 2), np.float32)})["y"].shape == (1, 1, 2, 3)
    with pytest.raises(NotSupported, match="expected an answer, found the end of ONNX Runtime's process"):
        answers_apart(runner, {"x": np.ones((0, 2, 2), np.float32)})
