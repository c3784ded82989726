"""Runs all GPU measurements in at most an hour, each step with a time limit."""

from __future__ import annotations

import importlib
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import click

from benchmarks.measure.engines import COMPARED

ROOT = Path(__file__).parents[2]
OUTPUT = Path("benchmarks/results/gpu")
PACKAGES = ("torch", "onnx", "onnxruntime", "tensorrt", "polygraphy", "tritonclient.grpc", "matplotlib", "pooch")
SERVED_MODELS = ("vitbn", "cnn")
# PyTorch in the ways in which users run it, then the other engines.
RUNTIMES = (
    *("torch", "torch-sdpa", "torch-compile", "torch-cudagraphs", "onnx-optimized"),
    *("tensorrt-plain", "tensorrt-folded", "tensorrt", "tensorrt-cudagraph"),
)
SERVED = ("--engine", "onnxruntime", "--engine", "tensorrt", "--device", "cuda", "--sharing", "1x0", "--rounds", "2")
PRECISIONS = ("fp32", "fp16")
# File of the result -> runtimes and precisions that are measured for SERVED_MODELS alone, beside PyTorch eager.
EXTRA_COMPARISONS = {
    "others": (("onnx-cudagraph",), PRECISIONS),
    "precisions": (("tensorrt", "tensorrt-cudagraph"), ("fp32", "bf16", "int8")),
}
GRACE_S = 30.0  # in which an interrupted step may end by itself


@dataclass(frozen=True)
class Step:
    """A click command of this project: its module, its name in the module, its arguments, and its time limit."""

    module: str
    name: str
    arguments: tuple[str, ...]
    minutes: float

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
    for name, (runtimes, precisions) in EXTRA_COMPARISONS.items():
        candidates = _options(model=SERVED_MODELS, runtime=("torch", *runtimes), precision=precisions)
        json_file = _options(json=output / f"{name}.json")
        yield Step("benchmarks.latency", "latency", (*sizes, *candidates, *json_file), 5)
    layout = _options(device="cuda", output=output / "layout")
    yield Step("benchmarks.studies.study", "study", ("layout", *layout), 1)
    for model in SERVED_MODELS:
        files = _options(repository=output / "triton_repo", timing_cache=output / "timing.cache")
        yield Step("export.to_tensorrt", "tensorrt", (*_options(model=model, precision="fp16"), *files), 2)
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
        yield Step("benchmarks.throughput", "throughput", (*load, *SERVED, *json_file), minutes)
    load = _options(preset="added", engine="tensorrt", precision="fp16", batch=5000, device="cuda", seconds=10)
    not_streamed = _options(streamed=0, json=output / "added.json")
    yield Step("benchmarks.throughput", "throughput", (*load, *not_streamed), 2)
    yield Step("benchmarks.report", "report", ("build", str(output)), 1)


def _options(**values: object) -> tuple[str, ...]:
    """The words of options on a command line; an option stands before each value of a tuple."""
    words: list[str] = []
    for name, value in values.items():
        for item in value if isinstance(value, tuple) else (value,):
            words += (f"--{name.replace('_', '-')}", str(item))
    return tuple(words)


@click.command()
@click.option("--output", type=click.Path(file_okay=False, path_type=Path), default=OUTPUT)
def gpu(output: Path) -> None:
    """Check the machine, then measure latency, engines and the server on its GPU, and write the report."""
    planned, missing = prepared(output)
    if missing:
        raise click.ClickException(f"expected a machine to measure on, found no {', '.join(missing)}")
    output.mkdir(parents=True, exist_ok=True)
    if failed := [step for step in planned if not _run(step)]:
        raise click.ClickException(f"{len(failed)} of {len(planned)} commands failed; the others' results stand")


def prepared(output: Path, fetch: bool = True) -> tuple[list[Step], list[str]]:
    """The steps, with their commands and arguments checked, and the names of what this machine lacks for them.

    `fetch`: downloads MNIST if no folder has it.
    """
    from export.engines.gpu import require_for_server
    from export.errors import ExportError

    missing = [*_missing_packages(), *_missing_programs_and_images(fetch)]
    try:
        gpu_state = str(require_for_server())
    except ExportError as reason:
        gpu_state, missing = f"not ready: {reason}", [*missing, "a GPU with TensorRT"]
    click.echo(f"GPU: {gpu_state}")
    planned = list(steps(output))
    click.echo(f"{len(planned)} commands, at most {sum(step.minutes for step in planned):.0f} minutes")
    for step in planned:
        check(step)
    return planned, missing


def check(step: Step) -> None:
    """Raises ClickException if the step's command does not exist or refuses its arguments."""
    try:
        command: click.Command = getattr(importlib.import_module(step.module), step.name)
        command.make_context(step.name, [*step.arguments])
    except (ImportError, AttributeError, click.ClickException) as error:
        reason = error.format_message() if isinstance(error, click.ClickException) else str(error)
        raise click.ClickException(f"{shlex.join(step.words)}: {reason}") from error


def _missing_packages() -> Iterator[str]:
    for package in PACKAGES:
        try:
            importlib.import_module(package)
        except ImportError as error:
            yield f"{package} ({' '.join(str(error).split())})"


def _missing_programs_and_images(fetch: bool) -> Iterator[str]:
    """What the server's steps lack. MNIST is checked now, since the steps that need it come after fifteen minutes."""
    from benchmarks.load.by_perf_analyzer import program
    from benchmarks.load.errors import Failed
    from models.data import DataError, find_idx
    from serving.launcher import native_server

    try:
        program()
    except Failed as error:
        yield f"perf_analyzer ({error})"
    if not native_server(os.environ.get("PATH", os.defpath)):
        yield "native tritonserver (a release container has one)"
    try:
        find_idx("mnist", None, fetch)
    except DataError as error:
        yield f"MNIST ({error})"


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
