"""Files that ONNX Runtime's optimiser fused: as cut and as packed as others, by ONNX Runtime's answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from foreign_networks import parse, proof_fails, session_of
from numpy.typing import NDArray

from export.compiler.errors import NothingToRewrite
from export.compiler.passes import decompose_fused, packed_indices
from export.compiler.pipeline import rewrite
from export.compiler.proof.masks import KINDS, draw_masks

Array = NDArray[Any]

MASK, WIDTH, PLACES = "attention_mask", 16, 64
SIZES = {"n": 1, "s": 24}
NORM = "com.microsoft.SkipLayerNormalization<epsilon = 0.00001>"
COUNTED = "e, counts = com.microsoft.EmbedLayerNormalization<epsilon = 0.00001>(ids, , words, places, , g, h, m)"
PARTED = "k, , e = com.microsoft.EmbedLayerNormalization(ids, zeros, words, places, kinds, g, h)"
ALONE = "e, unread = com.microsoft.EmbedLayerNormalization(ids, , words, places, , g, h)"
LOOKED = "e = Gather(words, ids)"
PROJECTED = "q{0} = MatMul({1}, wq) k{0} = MatMul({1}, wk) v{0} = MatMul({1}, wv) "
FUSED = "a{0} = com.microsoft.Attention<num_heads = 2"
SPLIT = PROJECTED + "a{0} = com.microsoft.MultiHeadAttention<num_heads = 2"
PRODUCTS = (
    PROJECTED
    + """
    r{0} = com.microsoft.FusedMatMul<alpha = 0.25, transB = 1>(q{0}, k{0}) s{0} = Add(r{0}, hidden)
    t{0} = Softmax<axis = 2>(s{0}) u{0} = Transpose<perm = [0, 2, 1]>(t{0})
    a{0} = com.microsoft.FusedMatMul<transA = 1>(u{0}, v{0})
"""
)
# How tokens are looked up, and the attention of a block, of its number and its input.
FORMS = {
    "numbers of tokens": (COUNTED, FUSED + ">({1}, w, b, counts)"),
    "a mask": (LOOKED, FUSED + ">({1}, w, b, m)"),
    "segments": (PARTED, FUSED + ", scale = 0.3, mask_filter_value = -20000.0>({1}, w, b, m)"),
    "a mask for each query": (ALONE, FUSED + ">({1}, w, b, each)"),
    "narrow keys": (LOOKED, FUSED + ", qkv_hidden_sizes = [8, 8, 16]>({1}, narrow, thin, m)"),
    "a bias of scores": (LOOKED, FUSED + ">({1}, w, b, m, , scores)"),
    "products": (LOOKED, PRODUCTS),
    "parts": (LOOKED, SPLIT + ">(q{0}, k{0}, v{0}, b, m)"),
    "parts, a bias of scores": (LOOKED, SPLIT + ", scale = 0.3>(q{0}, k{0}, v{0}, , m, scores)"),
}
NO_MASK = (LOOKED, FUSED + ">({1}, w, b)")


def weights() -> dict[str, Array]:
    rng = np.random.default_rng(0)
    draw = {"words": (PLACES, WIDTH), "places": (PLACES, WIDTH), "kinds": (2, WIDTH), "w": (WIDTH, 48), "b": (48,)}
    draw |= {"narrow": (WIDTH, 32), "thin": (32,), "o": (WIDTH, WIDTH), "wq": (WIDTH, WIDTH), "wk": (WIDTH, WIDTH)}
    draw |= {"wv": (WIDTH, WIDTH), "head": (WIDTH, 3)}
    made: dict[str, Array] = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in draw.items()}
    vectors = {"g": np.ones(WIDTH, np.float32), "h": np.zeros(WIDTH, np.float32)}
    numbers = {"nil": np.array(0), "step": np.array(1), "first": np.array([0])}
    return (
        made
        | vectors
        | numbers
        | {
            "far": np.array(0.1, np.float32),
            "unit": np.array(1, np.float32),
            "low": np.array(-1e4, np.float32),
            "both": np.array([0, 1]),
        }
    )


# Of the mask also its integers, its row for each query, what hides scores, and scores by distance.
BEFORE = """
    m = Cast<to = 6>(attention_mask) zeros = Sub(ids, ids)
    batch = Shape<end = 1>(ids) length = Shape<start = 1, end = 2>(ids) count = Squeeze(length)
    size = Concat<axis = 0>(batch, length, length) row = Unsqueeze(m, one) each = Expand(row, size)
    r = Range(nil, count, step) across = Unsqueeze(r, first) down = Unsqueeze(r, one) away = Sub(down, across)
    shown = Cast<to = 1>(row) gone = Sub(unit, shown) hidden = Mul(gone, low)
    distance = Cast<to = 1>(away) near = Mul(distance, far) scores = Unsqueeze(near, both)
"""
BLOCK = "{attention} p{0} = MatMul(a{0}, o) x{2} = {norm}({1}, p{0}, g, h)"
CLS = "t = Gather<axis = 1>(x2, nil) y = MatMul(t, head)"
ALL = "y = MatMul(x2, head)"


def network(form: tuple[str, str], read: str = CLS) -> ir.Model:
    """Two blocks of attention, projection and norm; `read` makes y of their output, x2."""
    embedding, attention = form
    nodes = [BEFORE, embedding]
    for number, (given, made) in enumerate((("e", 1), ("x1", 2))):
        called = attention.format(number, given)
        nodes.append(BLOCK.format(number, given, made, attention=called, norm=NORM))
    header = '<ir_version: 10, opset_import: ["": 21, "com.microsoft": 1]> g'
    inputs = f"(int32[n, s] ids, int64[n, s] {MASK})"
    return parse(f"{header} {inputs} => (float y) {{ {' '.join(nodes)} {read} }}", **weights(), one=np.array([1]))


def fused(model: ir.Model) -> list[str]:
    operators = {*decompose_fused.INPUTS, decompose_fused.EMBEDDING}
    return [node.op_type for node in model.graph.all_nodes() if node.op_type in operators]


def check(before: ir.Model, after: ir.Model, shown: bool = False) -> None:
    left, right = session_of(before), session_of(after)
    for seed, (texts, length) in enumerate([(1, 1), (1, 7), (3, 1), (5, 9), (8, 20), (16, 12)]):
        ids = np.random.default_rng(seed).integers(0, PLACES, (texts, length), dtype=np.int32)
        feeds = {"ids": ids, MASK: draw_masks(texts, length, seed, KINDS)}
        seen = np.asarray(feeds[MASK], bool)
        expected, found = (np.asarray(each.run(None, feeds)[0]) for each in (left, right))
        if shown:
            expected = np.where(seen[..., None], expected, 0)
        assert found.shape == expected.shape
        for of, step in ((seen.any(1), 2e-5), (~seen.any(1), 1e-3)):  # beside -10000 floats are 0.001 apart
            assert np.abs(found - expected)[of].max(initial=0) <= step * np.abs(expected).max(initial=1)


@pytest.mark.parametrize("form", [*FORMS.values(), NO_MASK], ids=[*FORMS, "no mask"])
def test_the_last_block_is_cut_and_the_others_stay_fused(form: tuple[str, str]) -> None:
    """Of what is cut as it is none is opened."""
    original = network(form)
    rewritten = rewrite(original, sizes=SIZES)
    opened = 0 if PROJECTED in form[1] else 1
    assert len(fused(rewritten.model)) == len(fused(original)) - opened
    assert rewritten.steps[0].sites
    check(original, rewritten.model)


@pytest.mark.parametrize(("form", "shown"), [("numbers of tokens", False), *((form, True) for form in FORMS)])
def test_no_mask_changes_an_answer_of_a_packed_file(form: str, shown: bool) -> None:
    """Of numbers of tokens, too: texts of which the mask hides more than the last tokens are computed whole."""
    original = network(FORMS[form], ALL if shown else CLS)
    rewritten = rewrite(original, ["y[mask]"] if shown else [], sizes=SIZES, packed=MASK)
    assert rewritten.steps[-1].sites
    check(original, rewritten.model, shown)


@pytest.mark.parametrize(
    "attention",
    [
        FUSED + ", unidirectional = 1>({1}, w, b, m)",
        FUSED + ">({1}, made, b, m)",
        FUSED + ">({1}, w, b, pairs)",
        SPLIT + ", unidirectional = 1>(q{0}, k{0}, v{0}, b, m)",
    ],
)
def test_an_attention_that_is_causal_or_of_another_form_stays_fused(attention: str) -> None:
    more = "most = ReduceMax<keepdims = 0>(distance) made = Mul(w, most) "
    more += "counts = ReduceSum<keepdims = 0>(m, one) pairs = Concat<axis = 0>(counts, counts)"
    original = network((f"{LOOKED} {more}", attention))
    rewritten = rewrite(original, sizes=SIZES)
    assert fused(rewritten.model) == fused(original)
    with pytest.raises(NothingToRewrite):
        rewrite(original, sizes=SIZES, packed=MASK)


def forget_filter(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(decompose_fused, "FILTER", -1.0)


def forget_scale(patch: pytest.MonkeyPatch) -> None:
    factors = {"scale": 1.0, "alpha": 1.0}
    patch.setattr(decompose_fused, "attribute_float", lambda node, name, default: factors.get(name, default))


def forget_others(patch: pytest.MonkeyPatch) -> None:
    def none(nodes: Any, seen: ir.Value, numbers: ir.Value, true: Any = packed_indices._hides_inside) -> ir.Value:
        hides: ir.Value = true(nodes, seen, numbers)
        return nodes.add("And", [hides, nodes.add("Not", [hides])])  # type: ignore[no-any-return]

    patch.setattr(packed_indices, "_hides_inside", none)


@pytest.mark.parametrize(
    ("form", "fault", "packed"),
    [
        ("numbers of tokens", forget_filter, None),
        ("numbers of tokens", forget_scale, None),
        ("numbers of tokens", forget_scale, MASK),
        ("numbers of tokens", forget_others, MASK),
        ("products", forget_scale, MASK),
    ],
)
def test_a_planted_fault_fails_the_proof(
    form: str, fault: Any, packed: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fault(monkeypatch)
    proof_fails(network(FORMS[form]), tmp_path, packed=packed)


@pytest.mark.parametrize("turned", [{"transBatchB": 1}, {"transA": 1, "transBatchA": 1}, {"transBatchA": 1}])
def test_a_product_whose_batch_is_transposed_is_cut(turned: dict[str, int]) -> None:
    """As ONNX Runtime fuses the attention of PyTorch's MultiheadAttention."""
    attributes = ", ".join(f"{name} = {value}" for name, value in turned.items())
    left = {"transBatchA": "n, b, s", "transAtransBatchA": "s, b, n"}.get("".join(turned), "b, n, s")
    right = "s, b, 4" if "transBatchB" in turned else "b, s, 4"
    original = parse(
        f"""<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]> g (float[{left}] x, float[{right}] z) =>
        (float[b, 4] y) {{
            p = com.microsoft.FusedMatMul<alpha = 0.5, {attributes}>(x, z) y = Gather<axis = 1>(p, first) }}""",
        first=np.array(0),
    )
    done = rewrite(original, sizes={"b": 1, "n": 24, "s": 24})
    assert done.steps[-1].macs * 24 == done.macs == 24 * 24 * 4
    sizes = {"b": 3, "n": 5, "s": 7, "4": 4}
    feeds = {
        name: np.random.default_rng(0).standard_normal([sizes[dim] for dim in dims.split(", ")]).astype(np.float32)
        for name, dims in (("x", left), ("z", right))
    }
    before, after = (session_of(model).run(None, feeds)[0] for model in (original, done.model))
    np.testing.assert_allclose(after, before, rtol=0, atol=1e-5)
