"""The reference in double beside ONNX Runtime, operator by operator, where onnx's own differs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from foreign_networks import answers, parse, run, wrote
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from common.sample import Sample
from export.compiler.errors import ProofFailed
from export.compiler.operators.evaluate import UnknownOperator, evaluate
from export.compiler.proof.compare import Errors

Array = NDArray[Any]
Shape = tuple[int, ...]


def check(
    operator: str, opset: int, inputs: list[Array | None], outputs: int = 1, free: int | None = None, **attributes: Any
) -> None:
    """The first `free` inputs are the graph's, others constants; by default all floats are the graph's."""
    arrays = {f"in{k}": array for k, array in enumerate(inputs) if array is not None}
    names = [f"in{k}" if array is not None else "" for k, array in enumerate(inputs)]
    while not names[-1]:
        names.pop()
    feeds = {
        name: array
        for k, (name, array) in enumerate(arrays.items())
        if (array.dtype == np.float32 if free is None else k < free)
    }
    made = [f"out{k}" for k in range(outputs)]
    graph = helper.make_graph(
        [helper.make_node(operator, names, made, **attributes)],
        "node",
        [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, array.shape) for name, array in feeds.items()],
        [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in made],
        [numpy_helper.from_array(array, name) for name, array in arrays.items() if name not in feeds],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    for answer, found in zip(answers(proto, feeds), evaluate(ir.from_proto(proto), feeds), strict=True):
        assert found.shape == answer.shape
        assert found.dtype == np.float64
        np.testing.assert_allclose(
            found.astype(np.float64), answer, rtol=0, atol=3e-6 * max(1.0, float(np.abs(answer).max(initial=0)))
        )


def drawn(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("operator", ["Softmax", "LogSoftmax", "Hardmax"])
@pytest.mark.parametrize("opset", [10, 11, 12, 13, 20])
@pytest.mark.parametrize("axis", [None, 0, 1, 2, -1, -2])
def test_softmaxes_join_the_axes_behind_until_opset_13(operator: str, opset: int, axis: int | None) -> None:
    check(operator, opset, [drawn(2, 3, 4)], **({} if axis is None else {"axis": axis}))


RESIZED: list[tuple[int, Shape, dict[str, Any], list[float], list[int]]] = [
    (10, (1, 2, 5, 7), {"mode": "nearest"}, [1, 1, 2.4, 0.6], []),
    (10, (1, 2, 5, 7), {"mode": "linear"}, [1, 1, 2.4, 1.7], []),
    *(
        (opset, (1, 2, 5, 7), {"mode": mode, "coordinate_transformation_mode": kind}, scales, [])
        for opset in (11, 13, 19)
        for mode in ("linear", "cubic")
        for kind in ("align_corners", "half_pixel", "asymmetric", "pytorch_half_pixel")
        for scales in ([1.0, 1.0, 1.7, 0.6], [1.0, 1.0, 0.3, 2.5])
    ),
    *(
        (13, (1, 2, 5, 7), {"mode": "nearest", "nearest_mode": rounding, "coordinate_transformation_mode": kind}, s, [])
        for rounding in ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
        for kind in ("align_corners", "half_pixel", "asymmetric", "tf_half_pixel_for_nn")
        for s in ([1.0, 1.0, 2.0, 3.0], [1.0, 1.0, 1.75, 0.5])
    ),
    (13, (1, 2, 5, 7), {"mode": "linear"}, [], [1, 2, 8, 3]),
    (13, (1, 2, 5, 7), {"mode": "cubic", "exclude_outside": 1}, [1, 1, 1.6, 2], []),
    (13, (1, 2, 5, 7), {"mode": "cubic", "cubic_coeff_a": -0.5}, [], [1, 2, 9, 4]),
    (18, (1, 2, 5, 7), {"mode": "linear", "axes": [2, 3]}, [], [8, 3]),
    (18, (1, 2, 6, 8), {"mode": "linear", "antialias": 1}, [1, 1, 0.5, 0.5], []),
    (
        19,
        (1, 2, 5, 7),
        {"mode": "linear", "coordinate_transformation_mode": "half_pixel_symmetric"},
        [1, 1, 1.7, 2],
        [],
    ),
]


@pytest.mark.parametrize(("opset", "shape", "attributes", "scales", "sizes"), RESIZED)
def test_resize(opset: int, shape: Shape, attributes: dict[str, Any], scales: list[float], sizes: list[int]) -> None:
    factors, ends = np.array(scales, np.float32), np.array(sizes, np.int64)
    region = np.zeros(0, np.float32) if opset == 11 else None
    behind = [factors] if opset == 10 else [region, factors if scales else None, ends if sizes else None]
    check("Resize", opset, [drawn(*shape), *behind], free=1, **attributes)


TRANSPOSED: list[tuple[Shape, Shape, dict[str, Any]]] = [
    ((2, 4, 5, 6), (4, 1, 3, 3), {"group": 4}),
    ((2, 4, 5, 6), (4, 3, 3, 2), {"group": 2, "strides": [2, 3], "pads": [1, 0, 0, 1]}),
    ((2, 4, 5, 6), (4, 3, 3, 2), {"strides": [2, 2], "output_shape": [10, 12]}),
    ((2, 4, 5, 6), (4, 3, 3, 2), {"strides": [2, 2], "output_shape": [10, 11], "auto_pad": "SAME_UPPER"}),
    ((2, 4, 5, 6), (4, 3, 3, 2), {"strides": [2, 2], "output_shape": [10, 11], "auto_pad": "SAME_LOWER"}),
    ((2, 4, 5, 6), (4, 3, 4, 4), {"strides": [2, 2], "auto_pad": "SAME_UPPER"}),
    ((2, 4, 5, 6), (4, 3, 3, 3), {"strides": [2, 2], "auto_pad": "SAME_LOWER"}),
    ((2, 4, 5, 6), (4, 2, 3, 3), {"strides": [2, 2], "output_padding": [1, 0], "dilations": [2, 1]}),
    ((2, 4, 5), (4, 2, 3), {"strides": [3], "pads": [1, 1]}),
]


@pytest.mark.parametrize(("image", "weight", "attributes"), TRANSPOSED)
def test_conv_transpose(image: Shape, weight: Shape, attributes: dict[str, Any]) -> None:
    check("ConvTranspose", 11, [drawn(*image), drawn(*weight)], **attributes)
    check(
        "ConvTranspose",
        11,
        [drawn(*image), drawn(*weight), drawn(weight[1] * attributes.get("group", 1))],
        **attributes,
    )


POOLS: list[dict[str, Any]] = [
    {"auto_pad": "SAME_LOWER", "strides": [2, 2]},
    {"auto_pad": "SAME_UPPER", "strides": [2, 3]},
    {"auto_pad": "VALID"},
    {"ceil_mode": 1, "strides": [2, 2]},
    {"ceil_mode": 1, "strides": [3, 2], "pads": [1, 0, 1, 1]},
    {"pads": [0, 1, 2, 0]},
]


@pytest.mark.parametrize("attributes", POOLS)
@pytest.mark.parametrize("operator", ["MaxPool", "AveragePool", "LpPool"])
def test_pools(operator: str, attributes: dict[str, Any]) -> None:
    opset = 18 if operator == "LpPool" else 12
    check(operator, opset, [drawn(2, 3, 7, 8)], kernel_shape=[3, 3], **attributes)
    if operator == "AveragePool" and "auto_pad" not in attributes:
        check(operator, opset, [drawn(2, 3, 7, 8)], kernel_shape=[3, 3], count_include_pad=1, **attributes)
    if operator == "MaxPool" and "auto_pad" not in attributes:  # ONNX Runtime pads as if the kernel were not dilated
        check(operator, opset, [drawn(2, 3, 9, 8)], kernel_shape=[3, 2], dilations=[2, 1], **attributes)


@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_lp_normalization(p: int, axis: int) -> None:
    check("LpNormalization", 13, [drawn(3, 4, 5)], p=p, axis=axis)


@pytest.mark.parametrize("precision", [None, onnx.TensorProto.FLOAT])
@pytest.mark.parametrize("hides", [np.finfo(np.float32).min, -np.inf])
def test_a_query_from_which_a_mask_hides_all_keys_answers_zeros(hides: float, precision: int | None) -> None:
    mask = np.zeros((2, 1, 3, 5), np.float32)
    mask[0, 0, 1], mask[:, :, 2, 3:] = hides, hides
    more = {} if precision is None else {"softmax_precision": precision}
    check("Attention", 23, [drawn(2, 4, 3, 8), drawn(2, 2, 5, 8), drawn(2, 2, 5, 6), mask], scale=0.3, **more)


@pytest.mark.parametrize("size", [1, 3, 5])
def test_lrn(size: int) -> None:
    check("LRN", 13, [10 * drawn(2, 7, 3, 3)], size=size, alpha=0.02, beta=0.6, bias=1.5)
    check("LRN", 13, [10 * drawn(2, 7, 3, 3)], size=size)


def test_norms_of_groups() -> None:
    x = drawn(2, 6, 3, 4)
    check("GroupNormalization", 18, [x, drawn(2), drawn(2)], num_groups=2)
    check("GroupNormalization", 21, [x, drawn(6), drawn(6)], num_groups=2, epsilon=0.01)
    check("InstanceNormalization", 17, [x, drawn(6), drawn(6)], epsilon=0.01)
    check("LayerNormalization", 17, [x, drawn(4), drawn(4)], outputs=3)


RECURRENT = {"LSTM": 4, "GRU": 3, "RNN": 1}


@pytest.mark.parametrize("operator", RECURRENT)
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("lengths", [None, [5, 5, 5]])
@pytest.mark.parametrize("states", [False, True])
def test_recurrent_layers(operator: str, direction: str, lengths: list[int] | None, states: bool) -> None:
    gates, ways, hidden = RECURRENT[operator], 2 if direction == "bidirectional" else 1, 4
    given = [
        drawn(5, 3, 6),
        *(drawn(ways, gates * hidden, wide) for wide in (6, hidden)),
        drawn(ways, 2 * gates * hidden),
    ]
    more = [np.array(lengths, np.int32) if lengths else None]
    last = 3 if operator == "LSTM" else 2
    if states:
        more += [drawn(ways, 3, hidden) for _ in range(last - 1)]
    check(operator, 14, [*given, *more], last, direction=direction, hidden_size=hidden)
    if operator == "GRU":
        check(operator, 14, [*given, *more], last, direction=direction, hidden_size=hidden, linear_before_reset=1)
    if operator == "LSTM" and states:
        check(operator, 14, [*given, *more, drawn(ways, 3 * hidden)], last, direction=direction, hidden_size=hidden)


@pytest.mark.parametrize("operator", RECURRENT)
@pytest.mark.parametrize(
    ("lengths", "options", "reason"),
    [
        ([5, 2, 1], {}, "sequences of equal lengths"),
        ([5, 5, 5], {"clip": 0.5}, "no clip"),
        ([5, 5, 5], {"activations": ["Relu"] * 3}, "the activation (Tanh|Sigmoid), found Relu"),
    ],
)
def test_recurrent_layers_that_onnx_computes_otherwise_have_no_reference(
    operator: str, lengths: list[int], options: dict[str, Any], reason: str
) -> None:
    wide = RECURRENT[operator] * 4
    if "activations" in options:
        options = {"activations": options["activations"][: {"LSTM": 3, "GRU": 2, "RNN": 1}[operator]]}
    given = [drawn(5, 3, 6), drawn(1, wide, 6), drawn(1, wide, 4), None, np.array(lengths, np.int32)]
    with pytest.raises(UnknownOperator, match=reason):
        check(operator, 14, given, hidden_size=4, **options)


@pytest.mark.parametrize("mode", ["constant", "reflect", "edge"])
@pytest.mark.parametrize("pads", [[0, -1, 2, 0, 0, -2], [0, 1, -1, 0, 0, -1], [-1, 0, 0, 0, 2, 1]])
def test_negative_pads(mode: str, pads: list[int]) -> None:
    check("Pad", 13, [drawn(3, 6, 7), np.array(pads), np.array(0.5, np.float32)], free=1, mode=mode)
    check("Pad", 10, [drawn(3, 6, 7)], mode=mode, pads=pads)


@pytest.mark.parametrize("mode", ["nearest", "bilinear", "bicubic"])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("corners", [0, 1])
def test_grid_sample(mode: str, padding: str, corners: int) -> None:
    grid = (1.3 * np.random.default_rng(0).uniform(-1, 1, (2, 4, 5, 2))).astype(np.float32)
    check("GridSample", 16, [drawn(2, 3, 6, 7), grid], mode=mode, padding_mode=padding, align_corners=corners)
    kind = mode.removeprefix("bi")
    check("GridSample", 20, [drawn(2, 3, 6, 7), grid], mode=kind, padding_mode=padding, align_corners=corners)


def test_outputs_that_are_left_out_are_not_asked_for() -> None:
    node = helper.make_node("LayerNormalization", ["x", "scale", ""], ["y", "", ""])
    values = [
        helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)
        for name, shape in (("x", (2, 3)), ("y", (2, 3)))
    ]
    scale = numpy_helper.from_array(np.ones(3, np.float32), "scale")
    proto = helper.make_model(
        helper.make_graph([node], "norm", values[:1], values[1:], [scale]), opset_imports=[helper.make_opsetid("", 17)]
    )
    (found,) = evaluate(ir.from_proto(proto), {"x": np.array([[1.0, 2, 3]] * 2)})
    np.testing.assert_allclose(found, [[-(1.5**0.5), 0, 1.5**0.5]] * 2, atol=1e-4)


def test_picked_rows_of_a_table_are_doubles() -> None:
    check("Gather", 17, [drawn(9, 4), np.array([[0, -1], [3, 3]])], free=0)


@pytest.mark.parametrize("reduction", ["none", "add", "mul", "max", "min"])
def test_scatters(reduction: str) -> None:
    again = [0, -1] if reduction != "none" else [1, 2]  # the order at a place that stands twice is nobody's
    pairs = np.array([[[0, -1], [2, 1]], [again, [1, 0]]])
    check("ScatterND", 18, [drawn(3, 4, 5), pairs, drawn(2, 2, 5)], reduction=reduction)
    check("ScatterND", 18, [drawn(3, 4), pairs, drawn(2, 2)], reduction=reduction)
    columns = np.array([[1, -1, 0], [3, 0, 2]])
    check("ScatterElements", 18, [drawn(3, 4), columns, drawn(2, 3)], axis=-1, reduction=reduction)


@pytest.mark.parametrize(
    ("batches", "places"),
    [(0, [[[1, -1]], [[0, 2]]]), (1, [[[3], [-1]], [[0], [0]]]), (2, [[[1], [-1], [0], [4]]] * 2)],
)
def test_gathers_of_places(batches: int, places: list[object]) -> None:
    check("GatherND", 13, [drawn(2, 4, 5), np.array(places)], free=1, batch_dims=batches)


def test_where_the_reference_differs_the_way_round_it_is_named(tmp_path: Path) -> None:
    """ONNX Runtime pads MaxPool as if its kernel were not dilated; ONNX does not."""
    network = parse(
        """<ir_version: 8, opset_import: ["": 17]> g (float[b, 2, 9, 9] x) => (float[b, 2, p, q] y) {
            c = Conv(x, w) n = BatchNormalization(c, s, s, s, s)
            y = MaxPool<kernel_shape = [3, 3], dilations = [2, 2], auto_pad = "SAME_UPPER">(n) }""",
        w=drawn(2, 2, 1, 1),
        s=np.array([0.5, 1.5], np.float32),
    )
    ir.save(network, path := tmp_path / "in.onnx")
    refused = run(path, "-o", tmp_path / "out.onnx")
    assert refused.exit_code == 4
    assert "--proof float32" in refused.output
    assert "--dims" not in refused.output
    wrote(path, "-o", tmp_path / "out.onnx", "--proof", "float32")


def test_an_operator_without_a_reference_names_the_way_round_it(tmp_path: Path) -> None:
    network = parse(
        """<ir_version: 8, opset_import: ["": 17]> g (float[s, b, 4] x) => (float[s, b, 3] y, float[s, 1, b, 3] h) {
            h = LSTM<hidden_size = 3, clip = 0.5>(x, w, r) y = MatMul(x, v) }""",
        **{"w": drawn(1, 12, 4), "r": drawn(1, 12, 3), "v": drawn(4, 3)},
    )
    ir.save(network, path := tmp_path / "in.onnx")
    refused = run(path, "-o", tmp_path / "out.onnx", "--read", "y[:,0]", "--read", "h")
    assert refused.exit_code == 4
    assert refused.output.endswith(
        "expected no clip and no parameters of activations; --proof float32 goes without; nothing written\n"
    )
    assert (
        run(path, "-o", tmp_path / "out.onnx", "--read", "y[:,0]", "--read", "h", "--proof", "float32").exit_code == 0
    )


def test_a_softmax_of_opset_11_is_proved(tmp_path: Path) -> None:
    """On axis 1 it normalises over all of the axes 1 and 2."""
    network = parse(
        """<ir_version: 7, opset_import: ["": 11]> g (float[b, 3, 4] x) => (float[b, 3, 4] y) {
            p = Softmax<axis = 1>(x) y = MatMul(p, w) }""",
        w=drawn(4, 4),
    )
    ir.save(network, path := tmp_path / "in.onnx")
    wrote(path, "-o", tmp_path / "out.onnx", "--read", "y[:,0]")


@pytest.mark.parametrize(("cast", "code"), [("Cast<to = 10>(h)", 0), ("Identity(h)", 0)])
def test_a_float16_output_behind_float32_weights_has_float16_s_rounding(cast: str, code: int, tmp_path: Path) -> None:
    kind = "float16" if "10" in cast else "float"
    network = parse(
        f"""<ir_version: 8, opset_import: ["": 17]> g (float[b, n, 8] x) => ({kind}[b, n, 8] y, float[b, n, 8] z) {{
            h = MatMul(x, w) y = {cast} z = Relu(h) }}""",
        w=drawn(8, 8),
    )
    ir.save(network, path := tmp_path / "in.onnx")
    result = run(path, "-o", tmp_path / "out.onnx", "--read", "y[:,0]", "--read", "z[:,0]", "--json")
    assert result.exit_code == code, result.output
    proof = json.loads(result.output)["proofs"][1]
    assert (proof["precision"], proof["tolerance"]) == (("float16", 5e-3) if kind == "float16" else ("float32", 1e-5))
    relative = (
        json.loads(result.output)["sample_tolerance"]["y"]
        / np.abs(Sample.read(tmp_path / "out.npz").outputs["y"]).max()
    )
    assert relative == pytest.approx(5e-3 if kind == "float16" else 1e-4, rel=1e-3)


def test_the_other_outputs_of_such_a_file_keep_float32_s_rounding() -> None:
    comparison, right = Errors("float32", "the original"), np.linspace(0, 1, 9)
    comparison.add([right, right], [right.astype(np.float16), right.astype(np.float32) + np.float32(1e-4)])
    with pytest.raises(ProofFailed, match=r"float32: output 1: expected an error of at most 1e-05, found 1\.0e-04"):
        comparison.proof()
