import copy
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
import torch
from commands import failure, measured, told

from benchmarks.latency import latency
from benchmarks.measure import devices, latency_measurement
from benchmarks.measure import reference as module
from benchmarks.measure.calls_on_device_buffers import BUFFERS, Calls
from benchmarks.measure.candidate import Candidate
from benchmarks.measure.engines import COMPARED, DEFAULT_RUNTIMES, OPTIMISED, RUNTIMES
from benchmarks.measure.first_calls import Missing
from benchmarks.measure.interleaved_timing import MIN_ROUNDS, Protocol
from benchmarks.measure.measured_network import Network
from benchmarks.measure.reference import make_reference
from benchmarks.measure.run_torch import channels_last
from benchmarks.reporting.tables.latencies import closing_lines
from export.compare_logits import EquivalenceError
from export.compiler.pipeline import Rewritten
from export.engines.gpu import Gpu
from export.precision_table import PRECISIONS
from models.networks.config import ModelConfig

QUICK = ("--batch", 3, "--depth", 1, "--seconds", 1, "--threads", 1, "--device", "cpu")
LIMITS = {
    "gemm_gflops_per_s": 100.0,
    "gemm_library": "none",
    "gemm_gflops_per_s_by_precision": {"fp32": 100.0},
    "copy_gb_per_s": 10.0,
}


@pytest.fixture(autouse=True)
def known_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.measure.peak_flops_and_bandwidth.limits", lambda *arguments: LIMITS)


def run(path: Path, options: str = "", exit_code: int = 0) -> tuple[str, dict[str, Any]]:
    """What is printed; `rows` and, of the rows that were left out, `missing`."""
    printed, written = measured(latency, path, *QUICK, *options.split(), code=exit_code)
    rows, missing = ([row for row in written["rows"] if ("reason" in row) == out] for out in (False, True))
    return printed, written | {"rows": rows, "missing": missing}


def test_answers_may_err_twice_as_much_as_the_network_itself() -> None:
    reference = make_reference(Network("cnn", ModelConfig(model="cnn")))
    assert 0 < reference.float32_error < 1e-6
    off = reference.logits + np.float32(3e-5 * np.abs(reference.logits).max())
    with pytest.raises(EquivalenceError, match=r"expected an error of at most 2.0e-05 of the largest logit, found 3"):
        reference.check("of a sound network", "fp32", len(off), off)
    vars(reference)["float32_error"] = 2e-5
    assert reference.check("of a diverged network", "fp32", len(off), off) > 0


@pytest.mark.slow
def test_every_model_at_equal_depth(tmp_path: Path) -> None:
    printed, written = run(tmp_path / "latency.json")
    assert written["machine"]["threads"] == 1
    assert written["machine"]["packages"]["torch"]
    assert written["limits"] == LIMITS
    rows = written["rows"]
    assert [(r["model"], r["runtime"]) for r in rows] == [(m, r) for m in COMPARED for r in DEFAULT_RUNTIMES["cpu"]]
    for row in rows:
        assert row["depth"] == (None if row["model"] == "cnn" else 1)
        assert row["p50_ms"] <= row["p90_ms"] <= row["p99_ms"]
        assert row["images_per_s"] == pytest.approx(3000 / row["p50_ms"])
        assert row["rounds"] == len(row["samples_ns"]) == len(rows[0]["samples_ns"]) >= MIN_ROUNDS
        assert row["max_abs_error"] < 1e-4
        assert row["gemm_share"] == pytest.approx(2 * row["macs"] * 3 / row["p50_ms"] / 1e6 / 100)
        moved_bytes = row["bandwidth_share"] * row["p50_ms"] * 1e6 * 10  # images, logits and up to 10 MB of weights
        assert 3 * (784 + 40) < moved_bytes < 1e7
        eager = next(r for r in rows if r["model"] == row["model"] and r["runtime"] == "torch")
        ratio = row["ratio_to_torch"]
        assert ratio["ratio"] == pytest.approx(np.median(eager["samples_ns"]) / np.median(row["samples_ns"]))
        assert ratio["low"] <= ratio["ratio"] <= ratio["high"]
    assert "ONNX Runtime, norms folded" in printed
    assert "Other runtimes: --runtime all, or some of torch-sdpa" in printed


@pytest.mark.slow
def test_what_is_missing_is_named_with_its_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def out_of_memory(*arguments: object) -> None:
        raise MemoryError("3 GB are too many\nand more lines")

    monkeypatch.setattr(module, "_file", out_of_memory)
    runtimes = ("torch", "torch-sdpa", "torch-cudagraphs", "onnx", "tensorrt")
    named = " ".join(f"--runtime {runtime}" for runtime in runtimes)
    printed, written = run(tmp_path / "latency.json", f"--model cnn {named} --precision fp32 --precision bf16")
    rows, missing = ({(row["runtime"], row["precision"]) for row in written[key]} for key in ("rows", "missing"))
    assert rows | missing == {(runtime, precision) for runtime in runtimes for precision in ("fp32", "bf16")}
    assert not rows & missing
    assert ("torch", "bf16") in rows
    for row in written["missing"]:
        label = RUNTIMES[row["runtime"]].label
        assert f"Not measured: cnn, {label}, {row['precision']}: {row['reason']}" in printed
    reasons = {row["runtime"]: row["reason"] for row in written["missing"] if row["precision"] == "fp32"}
    assert reasons["torch-sdpa"] == "the network has no attention"
    assert reasons["tensorrt"] == "TensorRT needs another device than cpu"
    assert reasons["onnx"] == "MemoryError: 3 GB are too many", "an engine that fails"


def test_nothing_to_measure_is_a_failure(tmp_path: Path) -> None:
    path = tmp_path / "latency.json"
    code, printed = told(latency, *QUICK, "--model", "cnn", "--runtime", "tensorrt", "--json", path)
    said = "nothing to measure: expected one of --runtime on this machine, found none"
    assert (code, "Not measured: cnn, TensorRT" in printed, said in printed) == (1, True, True)
    assert not path.exists()


@pytest.mark.slow
def test_the_published_configuration_comes_with_its_caveat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "COUNT", 8)  # images that six wide blocks answer in float64
    options = "--published-configuration --batch 2 --seconds 1 --model vit --model vitbn --runtime torch --device cpu"
    printed, written = measured(latency, tmp_path / "latency.json", *options.split())
    assert {row["model"]: row["depth"] for row in written["rows"]} == {"vit": 6, "vitbn": 1}
    assert "six blocks and the BatchNorm models one" in printed
    assert "vitbn of depth 1 is " in printed


@pytest.mark.slow
def test_a_wrong_runtime_costs_its_row_and_the_exit_code(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    real = module.rewrite

    def too_bright(*arguments: object) -> Rewritten:
        done = real(*arguments)
        bias = done.model.graph.outputs[0].producer().inputs[-1]
        bias.const_value = ir.tensor(bias.const_value.numpy() + np.float32(1), name=bias.name)
        return done

    monkeypatch.setattr(module, "rewrite", too_bright)
    options = "--model vitbn --runtime torch --runtime onnx-folded"
    printed, written = run(tmp_path / "latency.json", options, exit_code=1)
    assert "vitbn onnx-folded fp32: expected an error of at most" in printed
    assert [row["runtime"] for row in written["rows"]] == ["torch"]
    assert [row["runtime"] for row in written["missing"]] == ["onnx-folded"]


@pytest.mark.slow
def test_a_candidate_that_fails_while_it_is_timed_costs_its_row(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    real = Calls.__call__
    calls = []

    def failing(self: Calls) -> Any:
        calls.append(self)
        if self is calls[0] and len(calls) > 3:
            raise RuntimeError("CUDA error: out of memory")
        return real(self)

    monkeypatch.setattr(Calls, "__call__", failing)
    _, written = run(tmp_path / "latency.json", "--model cnn --runtime torch --runtime onnx-optimized")
    (left,) = written["rows"]
    assert {left["runtime"], written["missing"][0]["runtime"]} == {"torch", "onnx-optimized"}
    assert written["missing"][0]["reason"] == "RuntimeError: CUDA error: out of memory"


def test_of_an_aborted_attempt_no_reading_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    call = Calls(lambda images: images, np.zeros((1, 1), np.uint8), 1, "cpu")
    built = SimpleNamespace(candidate=Candidate(Network("vitbn", ModelConfig()), OPTIMISED))
    ready = {name: SimpleNamespace(calls=call, built=built) for name in "ab"}
    run = latency_measurement.Rounds(ready, 1, 1, "", Missing())
    run._monitor = SimpleNamespace(readings=[])

    def attempt(use: Callable[[dict[str, Any]], None]) -> None:
        run._monitor.readings.append(len(ready))
        call.device_ms.append(float(len(ready)))
        run._end_round(True)
        if len(ready) == 2:
            raise latency_measurement._Failed("a", RuntimeError("out of memory"))

    monkeypatch.setattr(run, "_interleaved", attempt)
    run.time(print)
    assert (run._monitor.readings, call.device_ms, call.counted) == ([1], [1.0], 1)


@pytest.mark.slow
def test_a_device_that_is_slow_in_all_rounds_costs_the_batch_size(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(latency_measurement, "ON_A_CPU", Protocol(settle_s=0.0, accept=lambda: False))
    options = "--model cnn --runtime torch --runtime onnx-optimized --batch 2"
    _, written = run(tmp_path / "latency.json", options, exit_code=1)
    assert written["rows"] == []
    assert {row["reason"] for row in written["missing"]} == {
        f"batch {batch}: expected rounds at full speed, found the device slowed down in all" for batch in (2, 3)
    }


def test_rows_say_why_they_are_no_cuda_graph() -> None:
    row = {"model": "vitbn", "runtime": "tensorrt-cudagraph", "label": "TensorRT", "precision": "fp16", "batch": 1}
    row |= {"device": "cuda", "stable": True, "fallback": "no CUDA graph for 1 image: RuntimeError: refused"}
    lines = list(closing_lines([row], [], LIMITS, None))
    assert "vitbn, TensorRT, fp16: no CUDA graph for 1 image: RuntimeError: refused" in lines


def test_other_images_at_every_call_with_copies_too(monkeypatch: pytest.MonkeyPatch) -> None:
    class Event:
        record = elapsed_time = lambda self, *others: 1.5

    monkeypatch.setattr(torch.cuda, "Event", lambda enable_timing: Event())
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    stream = SimpleNamespace(synchronize=lambda: None)
    for name in ("current_stream", "Stream"):
        monkeypatch.setattr(torch.cuda, name, lambda: stream)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: self)
    monkeypatch.setattr(torch.Tensor, "to", lambda self, device, **how: self)
    seen: list[int] = []

    def classify(images: Any) -> Any:
        seen.append(int(images[0, 0]))
        return images.float()

    images = np.arange(4 * 3, dtype=np.uint8).reshape(12, 1)
    call = Calls(classify, images, 3, "cuda")
    for ask in (call, call.with_copies, call.overlapped):
        ask()
        seen.clear()
        for _ in range(BUFFERS):
            ask()
        assert sorted(seen) == [0, 3, 6, 9], "every buffer once"
    assert call.device_ms == [1.5] * (1 + BUFFERS), "calls with copies have no events"
    call.end_round(True)
    call()
    call.end_round(False)
    assert len(call.device_ms) == 1 + BUFFERS, "a round that does not count leaves no time"


@pytest.mark.slow
def test_a_shipped_network_has_its_own_depth_also_in_a_lower_precision(tmp_path: Path) -> None:
    options = "--batch 2 --seconds 1 --device cpu --runtime onnx-optimized --precision int8 --model vitbn-tiny"
    _, written = measured(latency, tmp_path / "a.json", *options.split())
    (row,) = written["rows"]
    assert (row["model"], row["depth"], row["ratio_to_torch"]) == ("vitbn-tiny", 1, None)
    assert row["max_abs_error"] > 1e-3


@pytest.mark.parametrize("precision", [p for p in PRECISIONS if p != "fp32"])
def test_a_lower_precision_is_no_excuse_for_wrong_logits(precision: Any) -> None:
    reference = make_reference(Network("vitbn", ModelConfig(depth=1)))
    assert reference.check("it", precision, 64, reference.logits + 1e-4) == pytest.approx(1e-4, rel=0.1)
    too_dark = reference.model(torch.from_numpy(reference.proof_images // 8)).detach().numpy()
    for wrong in (too_dark, reference.logits[::-1], reference.logits[:32], np.full_like(reference.logits, np.nan)):
        with pytest.raises(EquivalenceError, match=r"it: expected (logits|an error)"):
            reference.check("it", precision, 64, wrong)


def test_channels_last_changes_no_logit() -> None:
    reference = make_reference(Network("cnn", ModelConfig(model="cnn")))
    network = channels_last(copy.deepcopy(reference.model))
    assert any(
        weight.is_contiguous(memory_format=torch.channels_last) for weight in network.parameters() if weight.dim() == 4
    )
    with torch.inference_mode():
        assert reference.check("cnn", "fp32", 64, network(torch.from_numpy(reference.proof_images)).numpy()) < 1e-5


@pytest.fixture
def no_cuda() -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a CUDA device")


@pytest.mark.usefixtures("no_cuda")
def test_cuda_that_is_not_there_is_said() -> None:
    expected = "Error: --device cuda: expected a CUDA device, found none"
    assert failure(latency, "--device", "cuda") == (expected, 1)


@pytest.mark.usefixtures("no_cuda")
def test_a_gpu_that_pytorch_does_not_start_is_never_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("export.engines.gpu.find_gpu", lambda: Gpu("NVIDIA H200", "9.0"))
    line, code = failure(latency, "--batch", 1)
    expected = "--device auto: expected PyTorch to start NVIDIA H200, found Torch not compiled with CUDA"
    assert (code, expected in line) == (1, True)
    assert devices.choose("cpu") == "cpu"
