from pathlib import Path
from typing import Any

import click
import pytest
from commands import failure, ok, told
from gpu_dry_run import dry_run
from gpu_faults import candidates

from benchmarks.load.published_candidates import publish
from benchmarks.measure import run_tensorrt
from benchmarks.measure.candidate import Candidate
from benchmarks.measure.engines import SERVED
from benchmarks.measure.measured_network import shipped_network
from benchmarks.presets import gpu as module
from benchmarks.presets.gpu import Step, check, gpu, steps
from export.engines.gpu import Gpu, find_gpu
from export.engines.tensorrt_engine import EngineOptions
from export.errors import Unavailable
from models.data import DataError
from models.networks.config import ModelConfig


def absent() -> Gpu:
    raise Unavailable("TensorRT: missing an NVIDIA GPU")


def no_images(name: str, folder: None, fetch: bool) -> Path:
    assert not fetch, "a dry run downloads nothing"
    raise DataError("no folder")


@pytest.fixture
def all_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Except the GPU."""
    monkeypatch.setattr("export.engines.gpu.require_for_server", absent)
    monkeypatch.setattr("serving.launcher.native_server", lambda path: Path("tritonserver"))
    monkeypatch.setattr("models.data.find_idx", lambda name, folder, fetch: Path(name))
    monkeypatch.setattr(module, "PACKAGES", ())


def test_a_dry_run_prints_and_checks_every_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("export.engines.gpu.require_for_server", absent)
    monkeypatch.setattr("serving.launcher.native_server", lambda path: None)
    monkeypatch.setattr("models.data.find_idx", no_images)
    monkeypatch.setattr(module, "PACKAGES", ("numpy", "no_such_package"))
    monkeypatch.setattr("gpu_dry_run.rehearse", lambda planned: [])
    monkeypatch.chdir(tmp_path)
    printed = ok(dry_run).output
    for step in steps(module.OUTPUT):
        assert " ".join(step.words) in printed
    (line,) = [line for line in printed.splitlines() if line.startswith("Missing on this machine: ")]
    for named in (
        *("no_such_package (No module named 'no_such_package')", "TensorRT (TensorRT: missing an NVIDIA GPU)"),
        *("native tritonserver (a release container has one)", "MNIST (no folder)"),
    ):
        assert named in line
    assert not list(tmp_path.iterdir())


def test_the_server_is_measured_with_tensorrt_and_in_every_memory_in_an_hour_at_most() -> None:
    assert sum(step.minutes for step in steps(Path())) <= 60
    words = [" ".join(step.words) for step in steps(Path("out"))]
    (many,) = (line for line in words if "throughput-5000.json" in line)
    assert "--batch 5000" in many
    assert "--shared-memory none --shared-memory system --shared-memory cuda" in many
    assert sum("--engine onnxruntime --engine tensorrt" in line for line in words) == 3
    assert any("throughput.py --preset added --engine tensorrt" in line for line in words)
    served = [step.arguments for step in steps(Path("out")) if step.name == "throughput"]
    assert {arguments.count("--batch") for arguments in served} == {1}, "an engine has one profile, for one batch size"


def test_a_plan_without_a_needed_candidate_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(candidates(list(steps(Path("out"))))) == []
    monkeypatch.setattr(module, "FURTHER_PRECISIONS", ())
    monkeypatch.setattr(module, "RUNTIMES", tuple(name for name in module.RUNTIMES if name != "onnx-cudagraph"))
    assert list(candidates(list(steps(Path("out"))))) == [
        "latency.py: expected --runtime onnx-cudagraph among the candidates, found none",
        "expected a step that measures lower precisions of TensorRT (int8), found none",
    ]


@pytest.mark.parametrize("precision", ["bf16", "int8"])
def test_a_server_gets_no_engine_in_a_precision_that_export_does_not_check(precision: Any, tmp_path: Path) -> None:
    candidate = Candidate(shipped_network("vitbn-tiny"), SERVED["tensorrt"], precision, device="cuda")
    with pytest.raises(Unavailable, match="TensorRT is served only in fp32, tf32, fp16"):
        publish(candidate, tmp_path, {"it": None})
    assert not list(tmp_path.iterdir())


def test_a_missing_load_generator_is_named_before_the_run(
    all_there: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.load.by_perf_analyzer.TOOL", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("gpu_dry_run.rehearse", lambda planned: ["a fault"])
    code, printed = told(dry_run)
    assert code == 1
    assert "Error: the rehearsal found 1 faults\na fault" in printed
    assert "expected NVIDIA's perf_analyzer" in printed


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (Step("benchmarks.latency", "latency", ("--speed", "1"), 1), "No such option"),
        (Step("benchmarks.latency", "latency", ("--runtime", "cuda"), 1), "not one of"),
        (Step("benchmarks.no_such", "latency", (), 1), "No module named"),
        (Step("benchmarks.latency", "no_such", (), 1), "no_such"),
    ],
)
def test_a_command_that_does_not_exist_is_named(step: Step, message: str) -> None:
    with pytest.raises(click.ClickException, match=message):
        check(step)


@pytest.mark.skipif(find_gpu() is not None, reason="this machine has a GPU")
@pytest.mark.usefixtures("all_there")
def test_without_a_gpu_nothing_runs(tmp_path: Path) -> None:
    expected = "Error: expected a machine to measure on, found no GPU"
    assert failure(gpu, "--output", tmp_path / "results") == (expected, 1)
    assert not list(tmp_path.iterdir())


SLOW = """
import time
try:
    time.sleep(60)
except KeyboardInterrupt:
    open("marked", "w")
"""


@pytest.mark.slow
@pytest.mark.usefixtures("all_there")
def test_a_step_that_fails_or_takes_too_long_costs_itself_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step that takes too long ends as by Ctrl-C, so it marks its result and stops its server."""
    scripts = {"slow": SLOW, "bad": "raise SystemExit(3)", "good": "open('done', 'w')"}
    for name, text in scripts.items():
        (tmp_path / f"{name}.py").write_text(text)
    planned = [Step(name, name, (), 0.05 if name == "slow" else 1) for name in scripts]
    for name in ("find_gpu", "require_for_server"):
        monkeypatch.setattr(f"export.engines.gpu.{name}", lambda: Gpu("Stub GPU", "9.0"))
    monkeypatch.setattr("benchmarks.load.by_perf_analyzer.program", lambda: Path("perf_analyzer"))
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(module, "steps", lambda output: planned)
    monkeypatch.setattr(module, "check", lambda step: None)
    line, code = failure(gpu, "--output", tmp_path / "results")
    assert (code, "2 of 3 commands failed; the others' results stand" in line) == (1, True)
    assert (tmp_path / "done").exists()
    assert (tmp_path / "marked").exists()


@pytest.mark.usefixtures("all_there")
def test_a_gpu_without_tensorrt_measures_the_steps_that_need_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("export.engines.gpu.find_gpu", lambda: Gpu("Stub GPU", "9.0"))
    run: list[Step] = []
    monkeypatch.setattr(module, "_run", lambda step: run.append(step) or True)
    printed = ok(gpu, "--output", tmp_path / "results").output
    assert {step.name for step in run} == {"latency", "study", "report"}
    left_out = [line for line in printed.splitlines() if line.startswith("Left out: ")]
    assert len(left_out) + len(run) == len(list(steps(Path())))
    assert all("found no TensorRT (TensorRT: missing an NVIDIA GPU)" in line for line in left_out)


def test_candidates_with_one_file_share_an_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[bool] = []

    def build(proto: None, config: ModelConfig, options: EngineOptions) -> bytes:
        assert options.timing_cache
        built.append(options.timing_cache.exists())
        options.timing_cache.write_bytes(b"timings")
        return b"plan"

    monkeypatch.setattr(run_tensorrt, "TIMINGS", [])
    monkeypatch.setattr(run_tensorrt, "build", build)
    monkeypatch.setattr(run_tensorrt, "prepare", lambda proto: None)
    monkeypatch.setattr("onnx.load_from_string", lambda data: None)
    run_tensorrt.engine_of.cache_clear()
    for data in (b"a", b"a", b"b"):
        assert run_tensorrt.engine_of(data, ModelConfig(), EngineOptions("fp32", fixed=(1, 64))) == b"plan"
    run_tensorrt.engine_of.cache_clear()
    assert built == [False, True], "the second engine knows the timings of the first"
