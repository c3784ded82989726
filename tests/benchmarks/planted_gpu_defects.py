"""Plants defects into the GPU's measurements. Out: number of a defect -> the lines of the dry run, as JSON."""

import json
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import exports_once
import gpu_dry_run
import gpu_faults

from benchmarks.load import by_perf_analyzer
from benchmarks.measure import engines, interleaved_timing, run_tensorrt
from benchmarks.measure.interleaved_timing import Durations
from benchmarks.measure.latency_measurement import Rounds
from benchmarks.presets import gpu
from benchmarks.presets.gpu import ROOT, Step
from export.engines.tensorrt_engine import EngineOptions
from export.publishing import build_config_pbtxt, publish

TWO = ("--runtime", "torch", "--runtime", "tensorrt", "--runtime", "tensorrt-cudagraph")
LATENCY = Step(
    *("benchmarks.latency", "latency"),
    (
        *("--model", "vitbn", *TWO, "--precision", "fp32", "--precision", "fp16", "--batch", "5000", "--batch", "1"),
        *("--seconds", "8", "--device", "cuda", "--json", "latency.json"),
    ),
    1,
)
LOAD = Step(
    *("benchmarks.throughput", "throughput"),
    ("--model", "vitbn-tiny", "--batch", "64", "--in-flight", "1", *gpu.SERVED, "--json", "throughput.json"),
    1,
)


def without_graph_dims(original: Any, message: Any, *limits: Any) -> None:
    original(message, *limits)
    for graph in message.optimization.cuda.graph_spec:
        graph.ClearField("input")
        graph.ClearField("graph_lower_bound")


def with_a_standby(original: Any, *arguments: Any) -> Any:
    message = original(*arguments)
    message.instance_group.add().CopyFrom(message.instance_group[0])
    return message


def planting(module: Any, name: str, function: Any) -> Any:
    """Replaces a function of a module by `function`, which gets the original as its first argument."""
    return patch.object(module, name, partial(function, getattr(module, name)))


def medians(turns: Any) -> Durations:
    return Durations(tuple(sorted(turn)[len(turn) // 2] for turn in turns))


@contextmanager
def cpu_makefile(folder: Path) -> Iterator[None]:
    for name in ("pyproject.toml", "constraints.txt", "constraints-gpu.txt"):
        shutil.copy(ROOT / name, folder)
    text = (ROOT / "Makefile").read_text()
    (folder / "Makefile").write_text(text.replace(".venv-gpu/bin", ".venv/bin"))
    yield


def planted(folder: Path) -> Iterator[tuple[str, list[Step], Path, Any]]:
    """The number of each defect, the steps that show it, the Makefile's folder, and a block that plants the defect."""
    backend = sys.modules["serving.backends.onnxruntime.model"]
    unfused = replace(engines.RUNTIMES["tensorrt-plain"], fused=False)
    yield "1", [], folder, cpu_makefile(folder)
    with patch.object(gpu, "COMPARED", ("vitbn", "cnn")), patch.object(gpu_dry_run, "_rehearsed", lambda *_: ()):
        yield "2", list(gpu.steps(folder)), ROOT, nullcontext()
    yield "3", [], ROOT, patch.object(interleaved_timing, "_durations", medians)
    yield "4", [LOAD], ROOT, planting(build_config_pbtxt, "_set_cuda_graphs", without_graph_dims)
    yield "5", [LOAD], ROOT, patch.object(by_perf_analyzer, "program", missing_program)
    yield "6", [LOAD], ROOT, planting(publish, "config_pbtxt", with_a_standby)
    yield "7", [], ROOT, patch.dict(engines.RUNTIMES, {"tensorrt-plain": unfused})
    yield "8", [LATENCY], ROOT, patch.object(Rounds, "_baseline", in_float32(Rounds._baseline))
    yield "9", [LATENCY], ROOT, patch.object(run_tensorrt, "engine_of", run_tensorrt.engine_of.__wrapped__)
    yield "10", [], ROOT, patch.object(backend, "check_provider", lambda *_: None)
    yield "11", [LATENCY], ROOT, patch.object(run_tensorrt, "EngineOptions", one_profile)


def one_profile(precision: Any, **_: Any) -> EngineOptions:
    return EngineOptions(precision, timing_cache=Path("cache"))


def missing_program() -> Path:
    with patch.object(by_perf_analyzer, "TOOL", Path("nowhere")), patch("shutil.which", lambda name: None):
        return PROGRAM()


def in_float32(original: Any) -> Any:
    return lambda rounds, name, precision="fp32": original(rounds, name)


PROGRAM = by_perf_analyzer.program

if __name__ == "__main__":
    with TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "copy").mkdir()
        gpu_dry_run.stub(folder)
        exports_once.install(Path(sys.argv[2]))
        lines = {"none": gpu_dry_run.faults([LATENCY, LOAD], ROOT, folder)}
        lines["plan"] = list(gpu_faults.candidates(list(gpu.steps(folder))))
        for number, steps, root, defect in planted(folder / "copy"):
            run_tensorrt.engine_of.cache_clear()
            with defect:
                lines[number] = gpu_dry_run.faults(steps, root, folder)
        Path(sys.argv[1]).write_text(json.dumps(lines))
