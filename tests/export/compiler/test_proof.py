from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from foreign_networks import VOCABULARY, Encoder, export, model, parse, proved, written

from export.compiler.errors import NotSupported, ProofFailed
from export.compiler.operators.evaluate import evaluate
from export.compiler.passes.prepare import prepare
from export.compiler.pipeline import rewrite
from export.compiler.proof.compare import compare
from export.compiler.proof.inputs import draw, free_dimensions, size_rounds, table_rows
from export.compiler.proof.original_file import Original
from export.compiler.proof.rounds import SMALL, RoundOptions, rounds


def changed(value: ir.Value, change: Callable[[np.ndarray], np.ndarray]) -> None:
    """Drops the double that a pass stored."""
    assert value.const_value is not None
    array = change(value.const_value.numpy().astype(np.float64))
    value.meta.pop("vitbn.exact", None)
    value.const_value = ir.tensor(array, name=value.name)


def drop_bias(graph: ir.Graph) -> None:
    value = next(v for name, v in graph.initializers.items() if "values" not in name and "value_bias" in name)
    changed(value, np.zeros_like)


def read_another_row(graph: ir.Graph) -> None:
    node = next(n for n in graph if n.op_type == "Gather" and n.outputs[0].dtype == ir.DataType.FLOAT and _row(n))
    value = node.inputs[1]
    assert value is not None
    assert value.const_value is not None
    value.const_value = ir.tensor(value.const_value.numpy() + 1, name=value.name)


def _row(node: ir.Node) -> bool:
    indices = node.inputs[1]
    return indices is not None and indices.const_value is not None and indices.const_value.numpy().tolist() == [0]


def move_a_weight(graph: ir.Graph) -> None:
    value = next(v for name, v in graph.initializers.items() if name.endswith("_keys"))

    def change(array: np.ndarray) -> np.ndarray:
        array.flat[3] += 1e-6
        return array

    changed(value, change)


def ignore_the_mask(graph: ir.Graph) -> None:
    softmax = [node for node in graph if node.op_type == "Softmax"][-1]
    add = softmax.inputs[0].producer() if softmax.inputs[0] is not None else None
    assert add is not None
    assert add.op_type == "Add"
    softmax.replace_input_with(0, add.inputs[0])


@pytest.mark.slow
@pytest.mark.parametrize("fault", [None, drop_bias, read_another_row, move_a_weight, ignore_the_mask])
def test_every_planted_fault_fails_the_proof(fault: Callable[[ir.Graph], None] | None) -> None:
    original = model(export(Encoder()))
    rewritten = rewrite(original).model
    if fault is None:
        assert proved(original, rewritten).error < 1e-13
        return
    fault(rewritten.graph)
    with pytest.raises(ProofFailed, match="float64: output 0: expected an error of at most 1e-10"):
        proved(original, rewritten)


def test_a_comparison_needs_elements_that_are_finite() -> None:
    ones, none, nan = np.ones((1, 2)), np.ones((0, 2)), np.full((1, 2), np.nan)
    assert compare([ones], [ones], "float64", 1e-10) == 0
    for expected, found, said in (
        ([ones], [nan], "output 0: expected an error of at most 1e-10, found nan"),
        ([nan], [nan], "output 0 of the graph itself is not finite: give --inputs"),
        ([none], [none], "output 0: expected elements to compare, found none"),
        ([], [], "expected 0 outputs, found 0"),
        ([ones], [ones[0]], "output 0: expected shape (1, 2), found (2,)"),
    ):
        with pytest.raises(ProofFailed) as failed:
            compare(expected, found, "float64", 1e-10)
        assert str(failed.value) == f"float64: {said}"


def test_numbers_that_fill_masked_places_do_not_hide_an_error() -> None:
    right, wrong = (np.array([[-3e38, 1.0, other]]) for other in (0.5, 0.51))
    for found, error in (wrong, "1.0e-02"), (np.array([[-3e38, 1.0, np.nan]]), "nan"):
        with pytest.raises(ProofFailed, match=f"found {error}"):
            compare([right], [found], "float32", 1e-5)


def test_fills_without_a_value_are_double_as_all_else() -> None:
    """As DeepSeek joins its heads: a reference refuses float32 beside double."""
    text = """<ir_version: 8, opset_import: ["": 18]> g (float[2, 3] x) => (float[2, 3] y) {
        size = Shape (x) zeros = ConstantOfShape (size) y = Add (zeros, x)
    }"""
    values = np.arange(6, dtype=np.float64).reshape(2, 3)
    (found,) = evaluate(ir.from_onnx_text(text), {"x": values})
    assert found.dtype == np.float64
    np.testing.assert_array_equal(found, values)


def test_inputs_fit_the_graph() -> None:
    graph = model(export(Encoder())).graph
    ids, mask = graph.inputs
    assert table_rows(ids) == VOCABULARY
    assert table_rows(mask) is None
    feeds = draw(graph, {"batch": 4, "seq": 7})
    assert feeds["attention_mask"][:, 0].all()
    assert feeds["attention_mask"].sum(1).min() < 7
    sizes = next(size_rounds(graph)).needed
    assert len({round_["seq"] for round_ in sizes}) == len({round_["batch"] for round_ in sizes}) == 3


def test_booleans_show_and_hide_a_token_of_each_text() -> None:
    """PyTorch hides the tokens that are true, others those that are false."""
    graph = parse('<ir_version: 8, opset_import: ["": 17]> g (bool[n, s] m) => (bool y) { y = Not(m) }').graph
    for seed in range(5):
        mask = draw(graph, {"n": 4, "s": 2}, seed)["m"]
        assert mask.any(axis=1).all()
        assert not mask.all(axis=1).any()


def test_booleans_hide_the_ends_of_texts_where_no_first_token_may_be_hidden(tmp_path: Path) -> None:
    """As in a causal network with PyTorch's src_key_padding_mask: a first token that is hidden sees no token."""
    text = """<ir_version: 8, opset_import: ["": 17]> g (float[n, s] x, bool[n, s] m) => (float[n, s] y) {
        visible = Not(m) number = Cast<to = 1>(visible) seen = CumSum(number, one) y = Div(x, seen) }"""
    ir.save(network := parse(text, one=1), tmp_path / "x.onnx")
    drawn = [*rounds(Original(tmp_path / "x.onnx"), network.graph, RoundOptions())]
    assert all(not each.feeds["m"][:, :1].any() for each in drawn)
    assert any(each.feeds["m"].any() for each in drawn)


def test_sizes_are_tried_apart_then_together() -> None:
    inputs = "int64[batch_1, seq_1] ids, int64[batch_2, seq_2] mask"
    graph = parse(f'<ir_version: 8, opset_import: ["": 17]> g ({inputs}) => (int64 y) {{ y = Mul(ids, mask) }}').graph
    apart, together, *_ = (family.needed for family in size_rounds(graph))
    assert all(sizes["seq_1"] != sizes["seq_2"] for sizes in apart)
    assert all(sizes["seq_1"] == sizes["seq_2"] for sizes in together)
    assert all(sizes["batch_1"] == sizes["batch_2"] for sizes in (*apart, *together))


@pytest.mark.parametrize("first", [True, False])
def test_inputs_whose_answer_is_small_by_chance_are_drawn_anew(first: bool, tmp_path: Path) -> None:
    """A float32 sum of large numbers is as exact as them, not as their difference."""
    text = '<ir_version: 8, opset_import: ["": 17]> g (float[n, 1] x) => (float[n, 1] y) { y = Sub(x, c) }'
    graph = parse(text, c=np.zeros((1, 1), np.float32)).graph
    family = next(size_rounds(graph))
    place = 0 if first else len(family.needed)
    chance = draw(graph, [*family.needed, *family.more][place], place)["x"]
    assert chance.size == 1
    ir.save(network := parse(text, c=np.nextafter(chance.astype(np.float32), np.float32(9))), tmp_path / "x.onnx")
    drawn = [*rounds(Original(tmp_path / "x.onnx"), network.graph, RoundOptions())]
    largest = [float(np.abs(each.answers[0]).max()) for each in drawn if not each.empty]
    assert min(largest) >= SMALL * max(largest)
    assert not np.array_equal(drawn[place].feeds["x"], chance)


def test_unnamed_axes_get_symbols_of_their_own() -> None:
    inputs = "float[?] zero, float[?] x, float[x_0] z"
    network = parse(f'<ir_version: 8, opset_import: ["": 17]> g ({inputs}) => (float y) {{ y = Sum(zero, x, z) }}')
    network.graph.inputs[0].name = "0"
    prepare(network)
    assert free_dimensions(network.graph) == ["dim_0_0", "x_0_", "x_0"]


def test_axes_of_one_name_stay_the_same_where_shapes_need_another_name() -> None:
    network = parse(
        '<ir_version: 8, opset_import: ["": 17]> g (float[b, 4] x, float[b, 4] z) => (float y) { y = Sum(x, z) }'
    )
    for value in network.graph.inputs:
        value.shape = ir.Shape(["batch size", "Max"])
    prepare(network)
    assert free_dimensions(network.graph) == ["batch_size", "Max_"]


def test_free_channels_are_those_of_the_filters() -> None:
    image = "float[batch, channels, height, width] image"
    text = f'<ir_version: 8, opset_import: ["": 17]> g ({image}) => (float y) {{ y = Conv(image, w) }}'
    graph = parse(text, w=np.ones((4, 3, 8, 8), np.float32)).graph
    families = list(size_rounds(graph))
    assert {sizes["channels"] for family in families for sizes in [*family.needed, *family.more]} == {3}
    assert any({sizes["height"] for sizes in family.needed} == {224} for family in families)


HEADER = '<ir_version: 8, opset_import: ["": {opset}{more}]> g (float[n, 4] a) => (float[n, 4] y) {{ {nodes} }}'
ANY = "size = Size(a) c = Cast<to = 9>(size)"
BODY = "(float[n, 4] b) { b = Relu(a) }"


@pytest.mark.parametrize(
    ("nodes", "opset", "more", "reason"),
    [
        (f"{ANY} y = If(c) <then_branch = t() => {BODY}, else_branch = e() => {BODY}>", 17, "", "found If with a body"),
        ("y = Relu(a)", 7, "", "opset: expected 10 to"),
        ("y = RandomNormalLike(a)", 17, "", "found RandomNormalLike"),
        ("y, m, v, p, q = BatchNormalization(a, w, w, w, w) k = Add(m, v)", 11, "", "found statistics"),
    ],
)
def test_what_the_passes_do_not_read_is_named(nodes: str, opset: int, more: str, reason: str) -> None:
    text = HEADER.format(opset=opset, more=more, nodes=nodes)
    with pytest.raises(NotSupported, match=reason):
        rewrite(parse(text, w=np.ones(4, np.float32)))


@pytest.mark.parametrize(
    "nodes",
    [
        "r = RandomNormalLike(a)",
        "r = SequenceConstruct(a)",
        f"{ANY} r = If(c) <then_branch = t() => {BODY}, else_branch = e() => {BODY}>",
        "l = Loop(three, , a) <body = l(int64 i, bool c, float[n, 4] v) => (bool d, float[n, 4] u) "
        "{ d = Identity(c) u = Relu(v) }>",
    ],
)
def test_what_nobody_reads_stops_no_pass(nodes: str, tmp_path: Path) -> None:
    body = f"norm = BatchNormalization(a, v, v, v, v) y = MatMul(norm, w) {nodes}"
    text = HEADER.format(opset=17, more="", nodes=body)
    network = parse(text, v=np.full(4, 0.5, np.float32), w=np.eye(4, dtype=np.float32), three=np.array(3))
    done = written(network, tmp_path).rewritten
    assert [node.op_type for node in done.model.graph] == ["MatMul", "Add"]


def test_sizes_too_small_for_a_window_give_way_to_larger_ones(tmp_path: Path) -> None:
    """For a window larger than the image ONNX Runtime outputs nothing."""
    network = parse(
        """<ir_version: 8, opset_import: ["": 18]> g (float[n, 2, h, w] a) => (float[n, 2, p, q] y) {
            x = Conv(a, k) b = BatchNormalization(x, s, s, s, s)
            y = AveragePool<kernel_shape = [12, 12], strides = [12, 12]>(b) }""",
        k=np.full((2, 2, 1, 1), 0.5, np.float32),
        s=np.array([0.5, 1.5], np.float32),
    )
    assert [step.name for step in written(network, tmp_path).rewritten.steps if step.sites] == ["fold-affine"]
