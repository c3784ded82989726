"""A short run of the benchmark: its table, its JSON, and planted wrong runtimes, caught before they are timed."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from benchmarks import contestants, measuring
from benchmarks import latency as module
from benchmarks.latency import COMPARED, latency
from benchmarks.runtimes import DEFAULT_RUNTIMES, PRECISIONS, RUNTIMES, SUPPORTED
from benchmarks.timing import MIN_ROUNDS
from export.equivalence import EquivalenceError
from export.graph import Served
from export.rewrites.pipeline import Step
from models.config import ModelConfig

QUICK = ("--batch", "3", "--depth", "1", "--seconds", "1", "--threads", "1", "--device", "cpu")
LIMITS = {
    "gemm_gflops_per_s": 100.0,
    "gemm_library": "none",
    "gemm_gflops_per_s_by_precision": {"fp32": 100.0},
    "copy_gb_per_s": 10.0,
}
FIELDS = {
    *("model", "depth", "dim", "runtime", "label", "precision", "batch", "micro_batch", "threads", "device", "rounds"),
    *("stable", "p50_ms", "p90_ms", "p99_ms", "device_p50_ms", "images_per_s", "ratio_to_torch", "first_call_ms"),
    *("macs", "gemm_share", "bandwidth_share", "peak_memory_mb", "max_abs_error", "samples_ns"),
}


@pytest.fixture(autouse=True)
def known_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The real ones have a test of their own, and take seconds."""
    monkeypatch.setattr("benchmarks.roofline.limits", lambda *arguments: LIMITS)


def test_the_recorded_command_names_no_file_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    given = ["latency.py", "--batch", "64", "--json", "/home/me/a.json", "--memory", "--plot", "/home/me/a.png"]
    monkeypatch.setattr("sys.argv", given)
    command = module._about(SimpleNamespace(threads=1, device="cpu"))["command"]
    assert command == "python benchmarks/latency.py --batch 64 --json FILE --memory --plot FILE"


def run(path: Path, *options: str) -> tuple[Result, dict[str, Any]]:
    result = CliRunner().invoke(latency, [*QUICK, "--json", str(path), *options])
    assert result.exit_code == 0, result.output
    return result, json.loads(path.read_text())


def test_every_model_at_equal_depth(tmp_path: Path) -> None:
    result, written = run(tmp_path / "latency.json", "--plot", str(tmp_path / "latency.png"))
    assert {"benchmark", "command", "environment", "limits", "caveat", "missing", "rows"} == written.keys()
    assert (written["benchmark"], written["caveat"], written["missing"]) == ("latency", None, [])
    assert written["environment"]["threads"] == 1
    assert written["environment"]["packages"]["torch"]
    rows = written["rows"]
    assert [(r["model"], r["runtime"]) for r in rows] == [(m, r) for m in COMPARED for r in DEFAULT_RUNTIMES]
    for row in rows:
        assert row.keys() == FIELDS
        assert row["depth"] == (None if row["model"] == "cnn" else 1)
        assert row["p50_ms"] <= row["p90_ms"] <= row["p99_ms"]
        assert row["images_per_s"] == pytest.approx(3000 / row["p50_ms"])
        assert row["rounds"] == len(row["samples_ns"]) == len(rows[0]["samples_ns"]) >= MIN_ROUNDS
        assert row["max_abs_error"] < 1e-4
        assert row["gemm_share"] == pytest.approx(2 * row["macs"] * 3 / row["p50_ms"] / 1e6 / 100)
        assert row["bandwidth_share"] > 3 * (784 + 40) / row["p50_ms"] / 1e6 / 10
        eager = next(r for r in rows if r["model"] == row["model"] and r["runtime"] == "torch")
        ratio = row["ratio_to_torch"]
        assert ratio["ratio"] == pytest.approx(eager["p50_ms"] / row["p50_ms"])
        assert ratio["low"] <= ratio["ratio"] <= ratio["high"]
    assert "ONNX Runtime, norms folded" in result.output
    assert "Other runtimes: --runtimes all, or some of torch-sdpa" in result.output
    assert (tmp_path / "latency.png").read_bytes().startswith(b"\x89PNG")
    assert b"<svg" in (tmp_path / "latency.svg").read_bytes()


def test_what_is_missing_is_named_with_its_reason(tmp_path: Path) -> None:
    runtimes = ("torch", "torch-sdpa", "torch-cudagraphs", "openvino", "tensorrt")
    options = ("--models", "cnn", "--runtimes", ",".join(runtimes), "--precision", "fp32,bf16")
    result, written = run(tmp_path / "latency.json", *options)
    rows, missing = ({(row["runtime"], row["precision"]) for row in written[key]} for key in ("rows", "missing"))
    assert rows | missing == {(runtime, precision) for runtime in runtimes for precision in ("fp32", "bf16")}
    assert not rows & missing
    assert ("torch", "bf16") in rows
    for row in written["missing"]:
        assert (
            f"Not measured: cnn, {RUNTIMES[row['runtime']].label}, {row['precision']}: {row['reason']}" in result.output
        )
    reasons = {row["runtime"]: row["reason"] for row in written["missing"]}
    assert reasons["torch-sdpa"] == "there is no attention in it"
    assert reasons["tensorrt"] == "TensorRT needs another device than cpu"


def test_lower_precision_micro_batches_and_memory(tmp_path: Path) -> None:
    options = ("--models", "vitbn", "--runtimes", "onnx-optimized", "--precision", "fp32,int8", "--memory")
    _, written = run(tmp_path / "latency.json", *options, "--micro-batch", "2")
    rows = {row["precision"]: row for row in written["rows"]}
    assert rows["int8"]["max_abs_error"] > 1e-3 > rows["fp32"]["max_abs_error"]
    assert {row["ratio_to_torch"] for row in written["rows"]} == {None}
    assert {row["micro_batch"] for row in written["rows"]} == {2}
    assert all(row["peak_memory_mb"] > 50 for row in written["rows"])


def test_the_published_configuration_comes_with_its_caveat(tmp_path: Path) -> None:
    path = tmp_path / "latency.json"
    arguments = ["--batch", "2", "--seconds", "1", "--models", "vit,vitbn", "--runtimes", "torch", "--json", str(path)]
    result = CliRunner().invoke(latency, [*arguments, "--published-configuration", "--device", "cpu"])
    assert result.exit_code == 0, result.output
    written = json.loads(path.read_text())
    assert {row["model"]: row["depth"] for row in written["rows"]} == {"vit": 6, "vitbn": 1}
    assert "six blocks and the BatchNorm models one" in written["caveat"]
    assert written["caveat"] in result.output
    assert "vitbn of depth 1 is " in result.output


def test_a_wrong_runtime_is_an_error_and_no_row(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    real = contestants.rewrite

    def too_bright(*arguments: object) -> tuple[Served, list[Step]]:
        served, steps = real(*arguments)
        return Served(served.model, scale_folded=False), steps

    monkeypatch.setattr(contestants, "rewrite", too_bright)
    path = tmp_path / "latency.json"
    result = CliRunner().invoke(latency, [*QUICK, "--models", "vitbn", "--json", str(path)])
    assert result.exit_code == 1
    assert "vitbn onnx-folded fp32: expected an error of at most" in result.output
    assert not path.exists()


@pytest.mark.parametrize("precision", [p for p in PRECISIONS if p != "fp32"])
def test_a_lower_precision_is_no_excuse_for_wrong_logits(precision: Any) -> None:
    config = ModelConfig(depth=1)
    images = contestants.example_images(config, 64)
    expected = contestants.expected_logits(config, images)
    too_dark = contestants.expected_logits(config, images // 8)
    assert contestants.check("it", precision, expected, expected + 1e-4) == pytest.approx(1e-4, rel=0.1)
    for wrong in (too_dark, expected[::-1], expected[:32], np.full_like(expected, np.nan)):
        with pytest.raises(EquivalenceError, match="it: expected logits"):
            contestants.check("it", precision, expected, wrong)


def test_micro_batches_are_searched_and_all_images_are_called() -> None:
    sizes: list[int] = []

    def classify(images: Any) -> Any:
        sizes.append(len(images))
        return np.zeros((len(images), 10), np.float32)

    config = ModelConfig()
    one = contestants.Contestant(config, "onnx", "fp32", b"", classify, 1)
    options = measuring.Options("cpu", 1, 1, "auto")
    images = contestants.example_images(config, 40 * measuring.BUFFERS)
    ready = measuring.first_call(one, images, 40, np.zeros((40, 10), np.float32), options)
    assert {16, 32, 40} <= set(sizes)
    assert ready.micro_batch in (16, 32, 40)
    sizes.clear()
    ready.call()
    assert sum(sizes) == 40


def test_the_table_of_runtimes_is_whole() -> None:
    assert set(DEFAULT_RUNTIMES) <= set(RUNTIMES)
    assert {runtime.engine for runtime in RUNTIMES.values()} == {engine for engine, _ in SUPPORTED}
    assert set(COMPARED) == {"vit", "vitbnffn", "vitbn", "cnn"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--models", "vit,resnet"], "expected names out of vit,vitbnffn,vitbn,"),
        (["--runtimes", ""], "expected names out of torch"),
        (["--precision", "fp8"], "expected names out of fp32,"),
        (["--batch", "0"], "0 is not in the range"),
        (["--depth", "0"], "0 is not in the range"),
        (["--micro-batch", "0"], "expected auto or a number of at least 1, found '0'"),
        (["--published-configuration", "--depth", "2"], "--published-configuration excludes"),
    ],
)
def test_bad_options(options: list[str], message: str) -> None:
    result = CliRunner().invoke(latency, options)
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())


def test_nothing_to_measure_is_said() -> None:
    result = CliRunner().invoke(latency, [*QUICK, "--runtimes", "tensorrt", "--models", "cnn"])
    assert result.exit_code == 1
    assert "nothing to measure" in result.output


def test_cuda_that_is_not_there_is_said() -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has a CUDA device")
    result = CliRunner().invoke(latency, ["--device", "cuda"])
    assert result.exit_code == 1
    assert "--device cuda: expected a CUDA device, found none" in result.output
