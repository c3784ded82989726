"""Rules of `tidy`: each leaves the answers as they are, and a wrong rule is found."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from foreign_networks import apart, parse

from export.compiler.analyses.batch_invariant import Padding
from export.compiler.graph.symbolic_shapes import Shapes
from export.compiler.passes import reorder_patch_features, tidy
from export.compiler.pipeline import Rewritten, optimise

BATCHES = [(3, 4, 6), (1, 4, 6)]
NORM = "t = Transpose<perm = [0, 2, 1]>(x) n = BatchNormalization(t, row, row, row, variance)"
TIDIED = [
    ("f = Reshape(x, flat) y = Reshape(f, heads)", ["Reshape"]),
    ("f = Flatten(x) y = Reshape(f, heads)", ["Reshape"]),
    ("t = Transpose<perm = [0, 2, 1]>(x) y = Transpose<perm = [1, 0, 2]>(t)", ["Transpose"]),
    (
        "t = Transpose<perm = [0, 2, 1]>(x) u = Transpose<perm = [1, 0, 2]>(t) v = Transpose<perm = [1, 2, 0]>(u) "
        "y = Relu(v)",
        ["Relu"],
    ),
    ("u = Unsqueeze(x, one) t = Transpose<perm = [0, 2, 1, 3]>(u) y = Reshape(t, heads)", ["Reshape"]),
    (f"{NORM} y = Transpose<perm = [0, 2, 1]>(n)", ["Mul", "Add"]),
    ("c = Concat<axis = 1>(shared, x) y = Add(c, wide)", ["Pad", "Add"]),
    ("c = Concat<axis = 1>(x, shared) y = Add(c, wide)", ["Pad", "Add"]),
    (
        "r = Gather<axis = 1>(x, one) m = MatMul(r, w) a = Add(row, m) g = Gelu(a) s = Add(r, g) "
        "y = Gather<axis = 1>(s, zero)",
        ["Gather", "Squeeze", "MatMul", "Add", "Gelu", "Add"],
    ),
    ("r = Gather<axis = 1>(x, one) g = Relu(r) y = Gather<axis = 1>(g, zero)", ["Gather", "Relu", "Squeeze"]),
    (
        "r = Gather<axis = 1>(x, one) m = Relu(r) t = Transpose<perm = [2, 1, 0]>(m) y = Gather<axis = 1>(t, zero)",
        ["Gather", "Relu", "Transpose", "Squeeze"],  # the batch moves
    ),
    (
        "q = Gather<axis = 0>(sizes, first) s = Concat<axis = 0>(q, four, two, three) h = Reshape(x, s) "
        "t = Transpose<perm = [0, 2, 1, 3]>(h) u = Relu(t) y = Transpose<perm = [0, 2, 3, 1]>(u)",
        ["Reshape", "Transpose", "Relu", "Transpose"],
    ),
    (
        "h = Reshape(x, single) t = Transpose<perm = [2, 0, 3, 1, 4]>(h) y = Squeeze(t, first)",
        ["Reshape", "Transpose"],
    ),
]
STAYS = [
    "c = Concat<axis = 1>(x, x) y = Relu(c)",
    "t = Transpose<perm = [0, 2, 1]>(x) y = Relu(t)",
    f"{NORM} r = Relu(n) u = Transpose<perm = [0, 2, 1]>(n) v = Transpose<perm = [0, 2, 1]>(r) y = Add(u, v)",
    f"{NORM} y = Transpose<perm = [1, 0, 2]>(n)",
    "m = MatMul(x, w) y = Gather<axis = 1>(m, zero)",  # of several rows
    "c = Concat<axis = 1>(shared, x) r = Relu(c) s = Add(c, wide) y = Add(s, r)",
    "t = Transpose<perm = [1, 0, 2]>(x) s = Concat<axis = 0>(sizes, four, six) y = Reshape(t, s)",  # moves the batch
]


SHAPES = {"w": (6, 6), "row": (6,), "wide": (5, 6), "cls": (1, 1, 6)}


def network(nodes: str) -> ir.Model:
    rng = np.random.default_rng(0)
    head = """<ir_version: 8, opset_import: ["": 20]> g (float[b, 4, 6] x) => (float y) {
        sizes = Shape<start = 0, end = 1>(x) token = Concat<axis = 0>(sizes, one, six) shared = Expand(cls, token)"""
    return parse(
        f"{head} {nodes} }}",
        **{"flat": [-1, 24], "heads": [-1, 4, 2, 3], "single": [-1, 4, 1, 2, 3]},
        **{"one": [1], "two": [2], "three": [3], "four": [4], "six": [6], "first": [0], "zero": 0},
        **{name: rng.standard_normal(shape).astype(np.float32) for name, shape in SHAPES.items()},
        variance=(rng.random(6) + 0.5).astype(np.float32),
    )


def tidied(nodes: str) -> Rewritten:
    return optimise(network(nodes), passes=["tidy"])


def kinds(model: ir.Model) -> list[str]:
    return [node.op_type for node in model.graph]


@pytest.mark.parametrize(("nodes", "left"), TIDIED)
def test_a_rule_leaves_the_answers_as_they_are(nodes: str, left: list[str]) -> None:
    done = tidied(nodes)
    assert kinds(done.model) == left
    assert done.steps[0].sites
    assert apart(network(nodes), done.model, *BATCHES) < 1e-13


@pytest.mark.parametrize("nodes", STAYS)
def test_a_node_that_no_rule_fits_stays(nodes: str) -> None:
    done = tidied(nodes)
    assert done.steps[0].left_out == "nothing of its kind"
    assert apart(network(nodes), done.model, *BATCHES) == 0


def test_an_output_keeps_its_name() -> None:
    assert [value.name for value in tidied("f = Reshape(x, flat) y = Reshape(f, heads)").model.graph.outputs] == ["y"]


def test_a_wrong_rule_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right = tidy.concat_as_padding

    def wrong(shapes: Shapes, concat: ir.Node) -> Padding | None:
        padding = right(shapes, concat)
        return padding and padding._replace(table=1.001 * padding.table)

    monkeypatch.setattr(tidy, "concat_as_padding", wrong)
    nodes = "c = Concat<axis = 1>(shared, x) y = Add(c, wide)"
    assert apart(network(nodes), tidied(nodes).model, *BATCHES) > 1e-5


CUT = "c = Reshape(p, blocks) t = Transpose<perm = [0, {perm}]>(c) r = Reshape(t, patches)"
LINEAR, NORMED = "y = MatMul(r, wide)", "n = LayerNormalization<epsilon = 0.1>(r, gamma, beta) y = MatMul(n, wide)"
ORDERS = [
    ("2, 4, 3, 5, 1", LINEAR, 3),
    ("2, 4, 3, 5, 1", NORMED, 3),
    ("2, 4, 3, 5, 1", "m = MatMul(r, wide) n = MatMul(r, narrow) y = Add(m, n)", 3),
    ("2, 4, 5, 1, 3", NORMED, 3),
    ("2, 4, 3, 5, 1", LINEAR, 1),
]
KEPT = [
    ("2, 4, 1, 3, 5", LINEAR),  # in order
    ("2, 4, 3, 1, 5", LINEAR),  # runs of memory, too
    ("2, 4, 3, 5, 1", "s = Relu(r) y = MatMul(s, wide)"),
    ("2, 4, 3, 5, 1", "m = MatMul(r, wide) s = ReduceSum(r, first) y = Add(m, s)"),
    ("2, 4, 3, 5, 1", "n = LayerNormalization(r, gamma, beta) y = Relu(n)"),
    ("2, 4, 3, 5, 1", "n = LayerNormalization<axis = 1>(r, gamma, beta) y = MatMul(n, wide)"),
    ("2, 1, 3, 4, 5", LINEAR),  # no patches: rows of the picture
]


def cut(perm: str, behind: str, channels: int) -> ir.Model:
    """Pictures of 4 x 6 in patches of 2 x 3."""
    rng = np.random.default_rng(0)
    wide = 6 * channels
    sizes = {"blocks": np.array([-1, channels, 2, 2, 2, 3]), "patches": np.array([-1, 4, wide])}
    text = f"""<ir_version: 8, opset_import: ["": 20]> g (float[b, {channels}, 4, 6] p) => (float y) {{
        {CUT.format(perm=perm)} {behind} }}"""
    drawn = {name: rng.standard_normal(wide).astype(np.float32) for name in ("gamma", "beta")}
    weights = {"wide": (wide, 5), "narrow": (wide, 1)}
    drawn |= {name: rng.standard_normal(shape).astype(np.float32) for name, shape in weights.items()}
    return parse(text, **sizes, **drawn, first=np.array([2]))


def turns(model: ir.Model) -> list[list[int]]:
    return [list(node.attributes["perm"].as_ints()) for node in model.graph if node.op_type == "Transpose"]


@pytest.mark.parametrize(("perm", "behind", "channels"), ORDERS)
def test_patches_are_cut_in_the_order_of_the_picture(
    perm: str, behind: str, channels: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = cut(perm, behind, channels)
    done = optimise(original, passes=["tidy"])
    assert turns(done.model)[0][-1] == len(turns(done.model)[0]) - 1
    shapes = [(count, channels, 4, 6) for count in (1, 3)]
    assert apart(original, done.model, *shapes) < 1e-13
    if channels > 1:
        monkeypatch.setattr(reorder_patch_features, "_permute", lambda *given: None)
        assert apart(original, optimise(cut(perm, behind, channels), passes=["tidy"]).model, *shapes) > 1e-2


@pytest.mark.parametrize(("perm", "behind"), KEPT)
def test_patches_whose_order_is_read_or_cheap_stay(perm: str, behind: str) -> None:
    original = cut(perm, behind, 3)
    done = optimise(original, passes=["tidy"])
    assert turns(done.model) == turns(original)
    assert apart(original, done.model, (3, 3, 4, 6)) == 0
