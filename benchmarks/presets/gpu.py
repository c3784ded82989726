"""Runs all GPU measurements in at most an hour, each step with a time limit.

A step whose needs this machine lacks is left out, and the others run: a GPU without TensorRT or without a native server
still measures PyTorch and ONNX Runtime.
"""

from __future__ import annotations

import importlib
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import click

from benchmarks.measure.engines import COMPARED
from common.given_path import GivenPath

ROOT = Path(__file__).parents[2]
OUTPUT = Path("benchmarks/results/gpu")
GPU = "GPU"
PACKAGES = ("torch", "onnx", "onnxruntime", "matplotlib")
OF_SOME_STEPS = TENSORRT, SERVER, LOAD, IMAGES = ("TensorRT", "native tritonserver", "perf_analyzer", "MNIST")
SERVED_MODELS = ("vitbn", "cnn")
# PyTorch in the ways in which users run it, then the other engines.
RUNTIMES = (
    *("torch", "torch-sdpa", "torch-compile", "torch-cudagraphs", "onnx-folded", "onnx-optimized", "onnx-cudagraph"),
    *("tensorrt-plain", "tensorrt-folded", "tensorrt", "tensorrt-cudagraph"),
)
SERVED = ("--engine", "onnxruntime", "--engine", "tensorrt", "--device", "cuda", "--sharing", "1x0", "--rounds", "2")
PRECISIONS = ("fp32", "fp16")
# Measured for SERVED_MODELS alone.
FURTHER_RUNTIMES = ("torch", "torch-cudagraphs", "onnx-optimized", "onnx-cudagraph", "tensorrt", "tensorrt-cudagraph")
FURTHER_PRECISIONS = ("tf32", "bf16", "int8")
GRACE_S = 30.0  # in which an interrupted step may end by itself


@dataclass(frozen=True)
class Step:
    """A click command of this project: its module, its name in the module, its arguments, and its time limit.

    `needs`: those of OF_SOME_STEPS that the command cannot do without.
    """

    module: str
    name: str
    arguments: tuple[str, ...]
    minutes: float
    needs: tuple[str, ...] = ()

    @property
    def words(self) -> list[str]:
        return ["python", f"{self.module.replace('.', '/')}.py", *self.arguments]


def steps(output: Path) -> Iterator[Step]:
    """The most important steps first: an end before the last step then costs the least."""
    sizes = _options(batch=(5000, 1), seconds=8, device="cuda")
    candidates = _options(model=COMPARED, runtime=RUNTIMES, precision=PRECISIONS)
    yield Step("benchmarks.latency", "latency", (*sizes, *candidates, *_options(json=output / "latency.json")), 27)
    in_torch = tuple(name for name in RUNTIMES if name.startswith("torch"))
    published = _options(runtime=in_torch, precision="fp32", json=output / "published.json")
    yield Step("benchmarks.latency", "latency", ("--published-configuration", *sizes, *published), 6)
    candidates = _options(model=SERVED_MODELS, runtime=FURTHER_RUNTIMES, precision=("fp32", *FURTHER_PRECISIONS))
    further = (*sizes, *candidates, *_options(json=output / "precisions.json"))
    yield Step("benchmarks.latency", "latency", further, 10)
    layout = _options(device="cuda", output=output / "layout")
    yield Step("benchmarks.studies.study", "study", ("layout", *layout), 1, (IMAGES,))
    for model in SERVED_MODELS:
        files = _options(repository=output / "triton_repo", timing_cache=output / "timing.cache")
        arguments = (*_options(model=model, precision="fp16"), *files)
        yield Step("export.to_tensorrt", "tensorrt", arguments, 2, (TENSORRT, IMAGES))
    memories = ("none", "system", "cuda")
    large = _options(model=SERVED_MODELS, precision="fp16", batch=5000, in_flight=(1, 2), shared_memory=memories)
    small = _options(model="vitbn", precision=PRECISIONS, in_flight=(1, 16))
    for name, load, minutes in (
        ("throughput-5000", large, 5),
        # Two commands, since an engine is tuned for the largest batch of its command.
        ("throughput", (*small, *_options(batch=64)), 2),
        ("throughput-1", (*small, *_options(batch=1)), 2),
    ):
        json_file = _options(json=output / f"{name}.json")
        yield Step("benchmarks.throughput", "throughput", (*load, *SERVED, *json_file), minutes, OF_SOME_STEPS)
    load = _options(preset="added", engine="tensorrt", precision="fp16", batch=5000, device="cuda", seconds=10)
    not_streamed = _options(streamed=0, json=output / "added.json")
    yield Step("benchmarks.throughput", "throughput", (*load, *not_streamed), 2, OF_SOME_STEPS)
    yield Step("benchmarks.report", "report", ("build", str(output)), 1)


def _options(**values: object) -> tuple[str, ...]:
    """The words of options on a command line; an option stands before each value of a tuple."""
    words: list[str] = []
    for name, value in values.items():
        for item in value if isinstance(value, tuple) else (value,):
            words += (f"--{name.replace('_', '-')}", str(item))
    return tuple(words)


@click.command()
@click.option("--output", type=GivenPath(file_okay=False, path_type=Path), default=OUTPUT)
def gpu(output: Path) -> None:
    """Check the machine, then measure latency, engines and the server on its GPU, and write the report."""
    planned, missing = prepared(output)
    if absent := [named for name, named in missing.items() if name not in OF_SOME_STEPS]:
        raise click.ClickException(f"expected a machine to measure on, found no {', '.join(absent)}")
    output.mkdir(parents=True, exist_ok=True)
    possible = [step for step in planned if not _left_out(step, missing)]
    if failed := [step for step in possible if not _run(step)]:
        raise click.ClickException(f"{len(failed)} of {len(possible)} commands failed; the others' results stand")


def prepared(output: Path, fetch: bool = True) -> tuple[list[Step], dict[str, str]]:
    """The steps, with their commands and arguments checked; and what this machine lacks for them: need -> its name with
    the reason.

    `fetch`: downloads MNIST if no folder has it.
    """
    missing = {name: f"{name} ({reason})" if reason else name for name, reason in _missing(fetch)}
    planned = list(steps(output))
    click.echo(f"{len(planned)} commands, at most {sum(step.minutes for step in planned):.0f} minutes")
    for step in planned:
        check(step)
    return planned, missing


def _left_out(step: Step, missing: Mapping[str, str]) -> bool:
    """Whether the step needs something that is missing; says so."""
    if absent := [missing[name] for name in step.needs if name in missing]:
        click.echo(f"Left out: {shlex.join(step.words)}: found no {', '.join(absent)}")
    return bool(absent)


def check(step: Step) -> None:
    """Raises ClickException if the step's command does not exist or refuses its arguments."""
    try:
        command: click.Command = getattr(importlib.import_module(step.module), step.name)
        command.make_context(step.name, [*step.arguments])
    except (ImportError, AttributeError, click.ClickException) as error:
        reason = error.format_message() if isinstance(error, click.ClickException) else str(error)
        raise click.ClickException(f"{shlex.join(step.words)}: {reason}") from error


def _missing(fetch: bool) -> Iterator[tuple[str, str]]:
    """What the steps lack, with the reason. MNIST is checked now, since the steps that need it come after minutes."""
    from benchmarks.load.by_perf_analyzer import program
    from benchmarks.load.published_candidates import Failed
    from export.engines.gpu import find_gpu, require_for_server
    from export.errors import ExportError
    from models.data import DataError, find_idx
    from serving.launcher import native_server

    for package in PACKAGES:
        try:
            importlib.import_module(package)
        except ImportError as error:
            yield package, " ".join(str(error).split())
    if not find_gpu():
        yield GPU, ""
    try:
        require_for_server()
    except ExportError as error:
        yield TENSORRT, str(error)
    try:
        program()
    except Failed as error:
        yield LOAD, str(error)
    if not native_server(os.environ.get("PATH", os.defpath)):
        yield SERVER, "a release container has one"
    try:
        find_idx("mnist", None, fetch)
    except DataError as error:
        yield IMAGES, str(error)


def _run(step: Step) -> bool:
    """Whether the step's command ends with exit code 0 within its time limit."""
    click.echo(f"\n$ {shlex.join(step.words)}")
    signal.signal(signal.SIGINT, signal.default_int_handler)  # else the steps of a background job ignore SIGINT
    process = subprocess.Popen([sys.executable, *step.words[1:]], cwd=ROOT)
    try:
        return process.wait(60 * step.minutes) == 0
    except subprocess.TimeoutExpired:
        click.echo(f"Stopped after {step.minutes:g} minutes; what it has written stands", err=True)
        process.send_signal(signal.SIGINT)
    finally:
        _end(process)
    return False


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kills the step after GRACE_S, in which an interrupted step marks its result and ends its server."""
    with suppress(subprocess.TimeoutExpired):
        process.wait(GRACE_S)
    process.kill()
    process.wait()
