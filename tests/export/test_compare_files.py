from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from commands import invoke
from onnx import numpy_helper, parser, save

from export import time_files
from export.compare import compare
from export.compiler.proof.runner import Runner
from export.intervals import Ratio

run = partial(invoke, compare)
W = np.random.default_rng(0).standard_normal((4, 4)).astype(np.float32)
HEAD = '<ir_version: 8, opset_import: ["": 17]> g (float[b, n, 4] x, int64[b, n] mask) => '
BODY = "m = Cast<to = 1>(mask) u = Unsqueeze(m, last) s = Mul(x, u) h = MatMul(s, w) y = Relu(h) z = Neg(h)"
SAME = "m = Cast<to = 1>(mask) u = Unsqueeze(m, last) h0 = MatMul(x, w) h = Mul(h0, u) z = Neg(h) y = Relu(h)"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_files, "SECONDS", 0.0)
    monkeypatch.setattr(time_files, "TURN_S", 0.0)


def write(
    path: Path, body: str = BODY, outputs: str = "(float[b, n, 4] y, float[b, n, 4] z)", head: str = HEAD
) -> Path:
    proto = parser.parse_model(f"{head}{outputs} {{ {body} }}")
    for name, array in {"w": W, "last": np.array([-1])}.items():
        proto.graph.initializer.append(numpy_helper.from_array(array, name))
    save(proto, path)
    return path


def test_files_that_answer_alike_are_equal_in_any_order_of_outputs(tmp_path: Path) -> None:
    first = write(tmp_path / "a.onnx")
    second = write(tmp_path / "b.onnx", SAME, "(float[b, n, 4] z, float[b, n, 4] y)")
    result = run(first, second, "--batch", "3", "--threads", "2", "--dims", "n=6")
    assert result.exit_code in (0, 5), result.output
    assert result.output.startswith("Equal float32: ")
    assert "Timed b=3, n=6, 2 threads: " in result.output
    assert "times as fast (95 %: " in result.output
    report = json.loads(run(first, second, "--json").output)
    assert [each["sizes"]["b"] for each in report["timed"]] == [1, 8]
    assert 0 < report["proof"]["error"] < 1e-5


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (BODY.replace("Mul(x, u)", "Identity(x)"), "expected an error of at most 1e-05, found"),  # ignores the mask
        (BODY.replace("Relu", "Tanh"), "float32: output 0: expected an error"),
        (BODY.replace("y = Relu(h)", "r = Relu(h) y = ReduceSum(r)"), "output 0: expected shape"),
    ],
)
def test_files_that_answer_otherwise_are_different(body: str, reason: str, tmp_path: Path) -> None:
    result = run(write(tmp_path / "a.onnx"), write(tmp_path / "b.onnx", body))
    assert result.exit_code == 4
    assert result.output.startswith("Different ")
    assert reason in result.output
    assert "Timed" not in result.output


def test_a_part_of_an_output_may_be_compared(tmp_path: Path) -> None:
    first = write(tmp_path / "a.onnx")
    second = write(
        tmp_path / "b.onnx",
        BODY.replace("y = Relu(h)", "r = Relu(h) y = Gather<axis = 1>(r, last)"),
        "(float[b, p, 4] y)",
    )
    assert run(first, second, "--read", "y[:,-1:]").exit_code in (0, 5)
    assert run(first, second, "--read", "y[:,:1]").exit_code == 4


def test_a_slower_file_has_its_own_exit_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = write(tmp_path / "a.onnx")
    more = " ".join(f"c{k} = Concat<axis = 1>({', '.join(['y0'] * 30)}) t{k} = ReduceMax(c{k})" for k in range(200))
    total = "t = Sum(" + ", ".join(f"t{k}" for k in range(200)) + ") none = Mul(t, zero) y = Add(y0, none)"
    body = BODY.replace("y = Relu(h)", f"y0 = Relu(h) {more} zero = Constant<value_float = 0.0>() {total}")
    result = run(first, second := write(tmp_path / "b.onnx", body), "--batch", "8")
    assert (result.exit_code, result.output[:5]) == (5, "Equal"), result.output
    assert run(second, first, "--batch", "8").exit_code == 0


def test_given_inputs_may_be_the_only_ones(tmp_path: Path) -> None:
    """On what is drawn the files differ: only negative numbers make them so."""
    first, second = write(tmp_path / "a.onnx"), write(tmp_path / "b.onnx", BODY.replace("Mul(x, u)", "Abs(x)"))
    np.savez(given := tmp_path / "in.npz", x=np.ones((2, 3, 4), np.float32), mask=np.ones((2, 3), np.int64))
    assert run(first, second, "--inputs", given).exit_code == 4
    assert run(first, second, "--inputs", given, "--inputs-only").exit_code in (0, 5)
    assert run(first, second, "--inputs-only").exit_code == 2


def test_files_that_cannot_be_compared_are_named(tmp_path: Path) -> None:
    first = write(tmp_path / "a.onnx")
    other = write(tmp_path / "b.onnx", head=HEAD.replace("float[b, n, 4] x", "float[b, n, 4] v, float[b, n, 4] x"))
    result = run(first, other)
    assert (result.exit_code, result.output) == (
        2,
        f"Error: {other}: expected the inputs of {first}, found another, 'v'\n",
    )
    (tmp_path / "text.onnx").write_text("no model")
    assert "expected an ONNX model" in run(first, tmp_path / "text.onnx").output


def test_branches_and_other_runtimes_operators_are_compared_by_the_files(tmp_path: Path) -> None:
    """`rewrite` refuses both."""
    branches = """c = ReduceMax<keepdims = 0>(x) zero = Constant<value_float = 0.0>() p = Greater(c, zero)
        y = If(p) <then_branch = t () => (float[b, n, 4] r) { r = Relu(x) },
                   else_branch = e () => (float[b, n, 4] q) { q = Abs(x) }> z = Neg(x)"""
    first, second = write(tmp_path / "a.onnx", branches), write(tmp_path / "b.onnx", branches)
    assert run(first, second, "--proof", "float32").exit_code in (0, 5)
    assert run(first, write(tmp_path / "c.onnx", branches.replace("Relu", "Abs")), "--proof", "float32").exit_code == 4


def test_large_files_are_timed_in_sessions_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "a.onnx")
    apart = tmp_path / "b.onnx"
    onnx.save(onnx.load(path), apart, save_as_external_data=True, location="b.data", size_threshold=64)
    monkeypatch.setattr("export.compiler.proof.runner.LARGE", 1 + max(file.stat().st_size for file in (path, apart)))
    assert (Runner(path, packed=True).large, Runner(apart, packed=True).large) == (False, True)
    graph = ir.load(path).graph
    (timed,) = time_files.time_both(path, apart, graph, {"b": 1, "n": 3}, batches=(2,))
    assert timed.rounds == time_files.LEAST
    assert not timed.packed, "both alike"


def test_a_speed_below_the_noise_is_not_slower() -> None:
    for ratio, low, high, slower in (0.9, 0.88, 0.93, True), (0.97, 0.96, 0.98, False), (0.9, 0.7, 1.1, False):
        assert time_files.Timed({}, 1, 1.0, 1 / ratio, Ratio(ratio, low, high), 9).slower is slower


def test_a_packed_file_is_compared_where_its_mask_shows(tmp_path: Path) -> None:
    """Its hidden rows are zeros, those of the original are not."""
    hidden = "h = MatMul(x, w) y = Identity(h)"
    first = write(tmp_path / "a.onnx", hidden, "(float[b, n, 4] y)")
    shown = "h = MatMul(x, w) m = Cast<to = 1>(mask) u = Unsqueeze(m, last) y = Mul(h, u)"
    second = write(tmp_path / "b.onnx", shown, "(float[b, n, 4] y)")
    packed = "--read", "y[mask]", "--packed", "mask"
    assert run(first, second, *packed).output.startswith("Equal float32: ")
    wrong = write(tmp_path / "wrong.onnx", shown.replace("Mul(h, u)", "Mul(h, h)"), "(float[b, n, 4] y)")
    assert run(first, wrong, *packed).exit_code == 4
    refused = run(first, second, "--read", "y[mask]")
    assert (refused.exit_code, refused.stderr) == (
        2,
        "Error: read: expected y[mask] with --packed MASK, found no mask\n",
    )
