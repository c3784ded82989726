"""The reference in double beside ONNX Runtime, operator by operator, where onnx's own differs."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from foreign_networks import answers, parse, run, wrote
from numpy.typing import NDArray
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from test_onnx_operators import LARGEST, cases, runner

from common.sample import Sample
from export.compiler.errors import ProofFailed
from export.compiler.operators.evaluate import UnknownOperator, evaluate
from export.compiler.operators.kernels import KERNELS
from export.compiler.proof.compare import Errors

Array = NDArray[Any]


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
    check_near(answers(proto, feeds), evaluate(ir.from_proto(proto), feeds))


def check_near(answers: list[Array], found: list[Array], what: str = "") -> None:
    """Doubles beside answers of ONNX Runtime; integers are equal."""
    for answer, array in zip(answers, found, strict=True):
        assert array.shape == answer.shape, what
        exact = answer.dtype.kind != "f"
        assert array.dtype == (answer.dtype if exact else np.float64), what
        step = 0.0 if exact else 3e-6 if answer.dtype == np.float32 else 1e-3
        largest = float(np.abs(answer[np.isfinite(answer)]).max(initial=1))
        np.testing.assert_allclose(array, answer, rtol=0, atol=step * largest, err_msg=what)


def drawn(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


@pytest.mark.slow
def test_our_kernels_answer_onnx_s_own_operator_tests_as_onnx_runtime() -> None:
    """No kernel gives the scores of an Attention, `qk_matmul`."""
    answered, kernels = Counter[str](), {kernel.__name__ for kernel in KERNELS}
    for case in cases():
        proto, arrays = case.model, case.data_sets[0][0]
        small = all(isinstance(array, np.ndarray) and array.size <= LARGEST for array in arrays)
        operator = proto.graph.node[0].op_type
        if not small or operator not in kernels or "qk_matmul" in case.name:
            continue
        feeds = dict(zip([value.name for value in proto.graph.input], arrays, strict=False))
        try:
            expected = runner(proto).run(None, feeds)
        except Exception:  # an operator or a dtype that ONNX Runtime lacks
            continue
        found = evaluate(ir.from_proto(proto), feeds)
        check_near(expected, found, case.name)
        if operator == "Attention" and "fp16" not in case.name:  # onnx's own is right
            wide = {name: array.astype(float) if array.dtype.kind == "f" else array for name, array in feeds.items()}
            for answer, array in zip(ReferenceEvaluator(proto).run(None, wide), found, strict=True):
                np.testing.assert_allclose(array, answer, rtol=0, atol=1e-9, err_msg=case.name)  # floats: 1e-7
        answered[operator] += 1
    assert kernels - answered.keys() == {"CumSum", "SimplifiedLayerNormalization"}
    assert answered.total() > 250


@pytest.mark.parametrize("operator", ["Softmax", "LogSoftmax", "Hardmax"])
@pytest.mark.parametrize("opset", [11, 12, 13])
@pytest.mark.parametrize("axis", [None, 0, 1, -1])
def test_softmaxes_join_the_axes_behind_until_opset_13(operator: str, opset: int, axis: int | None) -> None:
    check(operator, opset, [drawn(2, 3, 4)], **({} if axis is None else {"axis": axis}))


@pytest.mark.parametrize(
    ("opset", "attributes", "factors"),
    [
        (10, {"mode": "nearest"}, [1, 1, 2.4, 0.6]),
        (10, {"mode": "linear"}, [1, 1, 2.4, 1.7]),
        (11, {"mode": "linear"}, [1, 1, 1.7, 0.6]),
        (11, {"mode": "cubic", "coordinate_transformation_mode": "pytorch_half_pixel"}, [1, 1, 0.3, 2.5]),
        (13, {"nearest_mode": "ceil", "coordinate_transformation_mode": "tf_half_pixel_for_nn"}, [1, 1, 1.75, 0.5]),
    ],
)
def test_resizes_that_onnx_s_tests_lack(opset: int, attributes: dict[str, Any], factors: list[float]) -> None:
    region: list[Array | None] = {10: [], 11: [np.zeros(0, np.float32)]}.get(opset, [None])
    check("Resize", opset, [drawn(1, 2, 5, 7), *region, np.array(factors, np.float32)], free=1, **attributes)


def test_a_transposed_convolution_has_groups_and_a_bias() -> None:
    how = {"group": 2, "strides": [2, 3], "pads": [1, 0, 0, 1]}
    check("ConvTranspose", 11, [drawn(2, 4, 5, 6), drawn(4, 3, 3, 2), drawn(6)], **how)


def test_rows_are_scattered_and_gathered_at_pairs_of_places() -> None:
    pairs = np.array([[[0, -1], [2, 1]], [[1, 2], [1, 0]]])
    check("ScatterND", 18, [drawn(3, 4, 5), pairs, drawn(2, 2, 5)])
    check("GatherND", 13, [drawn(3, 4, 5), pairs], free=1)
    check("GatherND", 13, [drawn(2, 4, 5), np.array([[[3], [-1]], [[0], [0]]])], free=1, batch_dims=1)
    check("GatherND", 13, [drawn(2, 4, 5), np.array([[[1], [-1], [0], [4]]] * 2)], free=1, batch_dims=2)


@pytest.mark.parametrize("precision", [None, onnx.TensorProto.FLOAT])
@pytest.mark.parametrize("hides", [np.finfo(np.float32).min, -np.inf])
def test_a_query_from_which_a_mask_hides_all_keys_answers_zeros(hides: float, precision: int | None) -> None:
    mask = np.zeros((2, 1, 3, 5), np.float32)
    mask[0, 0, 1], mask[:, :, 2, 3:] = hides, hides
    more = {} if precision is None else {"softmax_precision": precision}
    check("Attention", 23, [drawn(2, 4, 3, 8), drawn(2, 2, 5, 8), drawn(2, 2, 5, 6), mask], scale=0.3, **more)


def test_a_norm_of_groups_has_a_scale_for_each_group_until_opset_21() -> None:
    check("GroupNormalization", 18, [drawn(2, 6, 3, 4), drawn(2), drawn(2)], num_groups=2)


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
