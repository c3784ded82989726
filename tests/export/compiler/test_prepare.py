"""Forms of exporters that no pass would follow are written plainly before the passes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
import torch
import torch.nn.functional as F
from foreign_networks import VOCABULARY, Encoder, answers, check_equal, export, parse, proof_fails, proved, written
from numpy.typing import NDArray
from torch import Tensor, nn

from export.compiler.errors import NotSupported
from export.compiler.graph.symbolic_shapes import Shapes
from export.compiler.operators.evaluate import evaluate_node
from export.compiler.passes import prepare, replace_scatters
from export.compiler.pipeline import optimise, prepared

HEAD = '<ir_version: 8, opset_import: ["": 18]> g (float[n, s, 4] x, bool[n, s] mask) => (float[n, s, 4] y) '
WHOLE = "wide = Unsqueeze(mask, last) form = Shape(x) true = Expand(wide, form)"
SPREAD = "flat = Reshape(true, all) ones = Cast<to = 7>(flat) sum = ReduceSum(ones, none) v = Expand(c, sum)"
PUT = "p = NonZero({mask}) t = Transpose(p) put = ScatterND{how}(x, t, {fill})"
RNG = np.random.default_rng(0)

Array = NDArray[Any]


def put(body: str, mask: str = "true", fill: str = "v", how: str = "") -> ir.Model:
    nodes = f"{WHOLE} {SPREAD} {body} {PUT.format(mask=mask, fill=fill, how=how)} y = MatMul(put, w)"
    axes = {"last": np.array([-1]), "all": np.array([-1]), "none": np.array([0]), "four": np.array([4])}
    return parse(f"{HEAD} {{ {nodes} }}", c=np.array(-1e4, np.float32), w=np.ones((4, 4), np.float32), **axes)


def feeds(texts: int = 3, length: int = 5) -> dict[str, Array]:
    return {"x": RNG.standard_normal((texts, length, 4)), "mask": RNG.integers(0, 2, (texts, length)).astype(bool)}


ROWS = "flags = Cast<to = 7>(mask) count = ReduceSum<keepdims = 0>(flags) size = Unsqueeze(count, none)"


@pytest.mark.parametrize(
    ("body", "mask", "fill"),
    [("", "true", "v"), (f"{ROWS} sizes = Concat<axis = 0>(size, four) rows = Expand(c, sizes)", "mask", "rows")],
    ids=["each number", "each row"],
)
def test_a_number_scattered_where_a_mask_is_true_becomes_a_where(body: str, mask: str, fill: str) -> None:
    original = put(body, mask, fill)
    plain = prepared(original).model
    assert [node.op_type for node in plain.graph if node.op_type in ("ScatterND", "NonZero")] == []
    for size in ((3, 5), (1, 1), (0, 5), (2, 0)):
        check_equal(original, plain, feeds(*size))


@pytest.mark.parametrize(
    ("body", "options"),
    [
        ("u = Mul(v, v)", {"fill": "u"}),  # computed numbers
        ("turned = Cast<to = 7>(true)", {"mask": "turned"}),  # a mask of numbers
        ("", {"how": '<reduction = "add">'}),
    ],
)
def test_a_scatter_of_another_form_stays(body: str, options: dict[str, str]) -> None:
    plain = prepared(put(body, **options)).model
    assert [node.op_type for node in plain.graph][-2:] == ["ScatterND", "MatMul"]


class Standardised(nn.Conv2d):
    """As timm writes it."""

    def forward(self, x: Tensor) -> Tensor:
        rows = self.weight.reshape(1, self.out_channels, -1)
        weight = F.batch_norm(rows, None, None, training=True, momentum=0.0, eps=1e-6)
        return F.conv2d(x, weight.reshape_as(self.weight), self.bias, self.stride)


def standardised(opset: int = 17, channels: int = 8) -> ir.Model:
    torch.manual_seed(0)
    layers = Standardised(3, channels, 3, 2), nn.BatchNorm2d(channels), nn.ReLU(), nn.Conv2d(channels, 4, 1)
    network = nn.Sequential(*layers).eval()
    return ir.from_proto(export(network, opset=opset))


@pytest.mark.parametrize("channels", [8, 1 + prepare.LARGEST_GROWTH // 27])
def test_a_standardised_weight_is_a_constant(channels: int) -> None:
    original = standardised(channels=channels)
    assert any("training_mode" in node.attributes and len(node.outputs) == 3 for node in original.graph)
    plain = prepared(original).model
    assert [node.op_type for node in plain.graph] == ["Conv", "BatchNormalization", "Relu", "Conv"]
    assert proved(original, plain).error < 1e-12


def test_a_standardised_convolution_takes_up_its_norm(tmp_path: Path) -> None:
    made = written(standardised(), tmp_path).rewritten.model
    assert [node.op_type for node in made.graph] == ["Conv", "Relu", "Conv"]


def test_a_wrong_constant_fails_the_proof(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(node: ir.Node, values: dict[ir.Value, Array], true: Any = evaluate_node) -> dict[ir.Value, Array]:
        factor = 1.001 if node.op_type == "BatchNormalization" else 1
        return {value: array * factor for value, array in true(node, values).items()}

    monkeypatch.setattr(prepare, "evaluate_node", wrong)
    proof_fails(standardised(), tmp_path)


@pytest.mark.parametrize("opset", [13, 17])
def test_a_norm_in_training_is_refused_where_it_is_computed(opset: int) -> None:
    outputs, how = ("y, a, b", "<training_mode = 1>") if opset > 13 else ("y, a, b, c, d", "")
    text = f'<ir_version: 8, opset_import: ["": {opset}]> g (float[n, 4] x) => (float[n, 4] y) '
    network = parse(f"{text} {{ {outputs} = BatchNormalization{how}(x, w, w, w, w) }}", w=np.ones(4, np.float32))
    with pytest.raises(NotSupported, match="expected BatchNormalization in inference, found statistics"):
        prepared(network)


def test_a_where_with_another_number_fails_the_proof(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def another(node: ir.Node, true: Any = replace_scatters._number) -> Array | None:
        number = true(node)
        return None if number is None else -number

    monkeypatch.setattr(replace_scatters, "_number", another)
    proof_fails(put(""), tmp_path, "y[:,0]")


class Interleaved(Encoder):
    """Features of the tokens are put in place, as Qwen3-VL turns its positions and Mistral 4 joins its keys."""

    def __init__(self, features: Any) -> None:
        super().__init__()
        self.features = features

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        x = self.words(input_ids) * attention_mask[..., None]
        y = x.roll(1, -1)
        y[..., self.features] = x.square()[..., self.features]
        for block in self.blocks:
            y = block(y, None)
        return y


FEATURES = [slice(1, 12, 3), slice(4), slice(-3, None), slice(None)]


@pytest.mark.parametrize("features", FEATURES)
def test_scattered_features_become_a_gather(features: Any) -> None:
    original = ir.from_proto(export(Interleaved(features)))
    assert "ScatterND" in [node.op_type for node in original.graph]
    plain = prepared(original).model
    assert "ScatterND" not in [node.op_type for node in plain.graph]
    for size in ((3, 5), (1, 1)):
        ids = RNG.integers(0, VOCABULARY, size)
        check_equal(original, plain, {"input_ids": ids, "attention_mask": RNG.integers(0, 2, size)})


PLACES = "n = Shape<start = 0, end = 1>(x) b = Squeeze(n) rows = Range({start}, b, {step}) r = Reshape(rows, {form})"


@pytest.mark.parametrize("other", [{}, {"step": "minus", "start": "two"}, {"features": [1, 1]}, {"form": "behind"}])
def test_a_scatter_of_features_that_is_no_gather_stays(other: dict[str, Any]) -> None:
    """Steps back, a feature twice, and the number of the row that stands for the feature."""
    places = {"start": "zero", "step": "one", "form": "front", "features": [3, 0], **other}
    text = '<ir_version: 8, opset_import: ["": 18]> g (float[n, 4] x, float[n, 2] u) => (float[n, 4] y) '
    parts = "f = Shape(u) i = Expand(r, f) j = Expand(c, f) a = Unsqueeze(i, last) d = Unsqueeze(j, last)"
    put = "p = Concat<axis = -1>(a, d) put = ScatterND(x, p, u) y = MatMul(put, w)"
    arrays = {"zero": 0, "one": 1, "two": 2, "minus": -1, "front": [-1, 1], "behind": [1, -1], "last": [-1]}
    numbers = {name: np.array(number) for name, number in arrays.items()}
    held = {"c": np.array(places["features"]), "w": np.eye(4, dtype=np.float32)}
    network = parse(f"{text} {{ {PLACES.format(**places)} {parts} {put} }}", **numbers, **held)
    assert ("ScatterND" in [node.op_type for node in prepared(network).model.graph]) is bool(other)


def test_a_gather_of_other_features_fails_the_proof(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def others(shapes: Shapes, node: ir.Node, true: Any = replace_scatters._features) -> list[int] | None:
        features = true(shapes, node)
        return None if features is None else features[::-1]

    monkeypatch.setattr(replace_scatters, "_features", others)
    proof_fails(export(Interleaved(slice(1, 12, 3))), tmp_path, "y[:,0]")


def cut(body: str) -> ir.Model:
    """Of x (n, s, 4) a Slice along s, from `start` to `end` by `step`, where m is -s."""
    text = '<ir_version: 8, opset_import: ["": 18]> g (float[n, s, 4] x) => (float[n, t, 4] y) '
    nodes = f"form = Shape(x) s = Gather<axis = 0>(form, one) m = Neg(s) {body} y = MatMul(part, w)"
    numbers = {"one": [1], "two": [2], "far": [2**63 - 1], "last": [-1]}
    arrays = {name: np.array(number) for name, number in numbers.items()}
    return parse(f"{text} {{ {nodes} }}", w=np.eye(4, dtype=np.float32), **arrays)


@pytest.mark.parametrize(
    ("body", "whole"),
    [
        ("part = Slice(x, m, far, one)", True),
        ("part = Slice(x, m, far, one, one)", True),
        ("part = Slice(x, m, far, one, two)", False),
        ("part = Slice(x, m, last, one)", False),
        ("part = Slice(x, m, m, one)", False),
        ("l = Add(m, one) part = Slice(x, l, far, one)", False),
        ("h = Div(m, two) part = Slice(x, h, far, one)", False),
        ("part = Slice(x, one, s, one)", False),
    ],
)
def test_a_slice_as_long_as_its_axis_is_dropped(body: str, whole: bool) -> None:
    plain = prepared(original := cut(body)).model
    assert all(node.op_type != "Slice" for node in plain.graph) == whole
    for size in ((3, 5), (1, 1), (2, 0)):
        check_equal(original, plain, {"x": RNG.standard_normal((*size, 4))})


def test_an_axis_that_a_part_leaves_is_known() -> None:
    plain = prepared(cut("h = Div(m, two) part = Slice(x, h, far, one)")).model
    shape = next(node.outputs[0].shape for node in plain.graph if node.op_type == "Slice")
    assert shape is not None
    assert [str(shape[0]), shape[2]] == ["n", 4]


def test_a_weight_of_integers_stays() -> None:
    """ONNX Runtime makes integers of a float weight between integers, with another scale."""
    rounded = "{to}i = QuantizeLinear({of}, s, z) {to} = DequantizeLinear({to}i, s, z)"
    layer = "w = DequantizeLinear(wi, ws) b = DequantizeLinear(bi, bs) g = Gemm<transB = 1>(v, w, b)"
    nodes = f"{rounded.format(of='x', to='v')} {layer} {rounded.format(of='g', to='y')}"
    weights = RNG.integers(-90, 90, (3, 4)).astype(np.int8)
    integers = {"wi": weights, "bi": RNG.integers(-900, 900, 3).astype(np.int32), "z": np.array(128, np.uint8)}
    scales = {name: np.array(scale, np.float32) for name, scale in [("s", 0.01), ("ws", 0.007), ("bs", 7e-5)]}
    head = '<ir_version: 10, opset_import: ["": 21]> g (float[n, 4] x) => (float[n, 3] y)'
    original = parse(f"{head} {{ {nodes} }}", **integers, **scales)
    plain = prepared(original).model
    given = {"x": RNG.standard_normal((50, 4)).astype(np.float32)}
    np.testing.assert_array_equal(answers(plain, given)[0], answers(original, given)[0])


def test_a_type_like_that_of_another_value_is_named() -> None:
    """As torch.onnx writes all its ranges and scales before it optimises a file."""
    nodes = """size = Shape<start = 1, end = 2>(x) length = Squeeze(size) first = CastLike(zero, length)
        step = CastLike(one, length) places = Range(first, length, step) wide = CastLike(one, x) root = Sqrt(wide)
        far = CastLike(places, x) rows = Unsqueeze(far, one) moved = Add(x, rows) y = Mul(moved, root)"""
    original = parse(f"{HEAD} {{ {nodes} }}", zero=np.array(0), one=np.array(1))
    plain = prepared(original).model
    assert [node.op_type for node in plain.graph][-5:] == ["Range", "Cast", "Unsqueeze", "Add", "Mul"]
    assert str(next(node for node in plain.graph if node.op_type == "Range").outputs[0].shape) == "[s]"
    check_equal(original, plain, feeds())


def test_a_cast_to_the_dtype_of_its_input_is_dropped() -> None:
    """Between a softmax and its values it kept a pass from making a row of queries without keys and values."""
    original = parse(f"{HEAD} {{ s = Softmax(x) same = Cast<to = 1>(s) put = Mul(same, x) y = Cast<to = 1>(put) }}")
    plain = prepared(original).model
    assert [node.op_type for node in plain.graph] == ["Softmax", "Mul", "Cast"]  # the last has the output's name
    check_equal(original, plain, feeds())


@pytest.mark.parametrize(
    ("copy", "gone"),
    [
        ("Mul(one, v)", True),
        ("Div(v, one)", True),
        ("Sub(v, nil)", True),
        ("Pow(v, one)", True),
        ("Sum(v)", True),
        ("Expand(v, form)", True),
        ("Tile(v, ones)", True),
        ("Pad(v, none)", True),
        ("Transpose<perm = [0, 1, 2]>(v)", True),
        ("Transpose<perm = [1, 0, 2]>(u)", True),
        ("Sub(one, v)", False),
        ("Div(one, v)", False),
        ("Mul(nil, v)", False),
        ("Add(v, one)", False),
        ("Sum(v, v)", False),
        ("Pad(v, moved)", False),  # of the same shape
        ("Expand(first, form)", False),
        ("Transpose<perm = [1, 2, 0]>(u)", False),
    ],
)
def test_an_operator_that_changes_nothing_is_dropped(copy: str, gone: bool) -> None:
    """Between scores and softmax it kept keys and values from going."""
    nodes = "v = Exp(x) u = Transpose<perm = [1, 0, 2]>(v) form = Shape(v) first = Slice(v, none_1, one_1, one_1)"
    numbers = {"one": np.float32(1), "nil": np.float32(0)}
    vectors = {"ones": [1, 1, 1], "none": [0] * 6, "moved": [0, 0, 1, 0, 0, -1], "none_1": [0], "one_1": [1]}
    given = {name: np.array(each) for name, each in (numbers | vectors).items()}
    plain = prepared(original := parse(f"{HEAD} {{ {nodes} w = {copy} y = Tanh(w) }}", **given)).model
    assert ([node.op_type for node in plain.graph] == ["Exp", "Tanh"]) == gone
    check_equal(original, plain, feeds())


@pytest.mark.parametrize(("number", "added", "stays"), [(0, 0, True), (-1, 0, False), (0, 2, False), (2, 2, True)])
def test_a_comparison_with_a_size_that_occurs_stays(number: int, added: int, stays: bool) -> None:
    """An empty batch has the size 0."""
    body = f"""{HEAD.replace("float[n, s, 4] y", "int64[1] y")} {{ form = Shape<end = 1>(x) size = Add(form, more)
        none = Equal(size, number) y = Where(none, seven, size) }}"""
    given = {"number": np.array([number]), "more": np.array([added]), "seven": np.array([7])}
    plain = prepared(original := parse(body, **given)).model
    assert ("Equal" in {node.op_type for node in plain.graph}) == stays
    for texts in (0, 3):
        check_equal(original, plain, feeds(texts))


def test_a_comparison_with_an_infinite_number_stays() -> None:
    body = f"{HEAD} {{ e = Equal(x, low) y = Where(e, nil, x) }}"
    original = parse(body, low=np.array(-np.inf, np.float32), nil=np.array(0, np.float32))
    assert [node.op_type for node in prepared(original).model.graph] == ["Equal", "Where"]


@pytest.mark.parametrize(
    ("picked", "rows"),
    [
        ("h = Gather<axis = 1>(e, last)", 1),
        ("i = Squeeze(last) h = Gather<axis = 1>(e, i)", 1),
        ("h = Slice(e, last, end, one)", 1),
        ("h = Gather<axis = 1>(e, before)", 64),  # of one row it is row -1, but not row -2
    ],
)
def test_the_last_row_by_the_number_of_rows_is_row_minus_one(picked: str, rows: int) -> None:
    text = f"""<ir_version: 8, opset_import: ["": 18]> g (float[b, n, 4] x) => (float[b, k, 4] y) {{
        e = MatMul(x, w) n = Shape<start = 1, end = 2>(x) last = Sub(n, one) before = Sub(last, one)
        {picked} y = Relu(h) }}"""
    numbers = {"one": np.array([1]), "end": np.array([1 << 40])}
    original = parse(text, w=RNG.standard_normal((4, 4)).astype(np.float32), **numbers)
    rewritten = optimise(original, sizes={"b": 1, "n": 64})
    assert rewritten.steps[-1].macs == rows * 16
    for size in ((2, 1), (1, 5), (0, 3)):
        check_equal(original, rewritten.model, {"x": RNG.standard_normal((*size, 4))})
