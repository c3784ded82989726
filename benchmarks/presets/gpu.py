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
# PyTorch as its users run it, then the other engines.
RUNTIMES = (
    *("torch", "torch-sdpa", "torch-compile", "torch-cudagraphs", "onnx-optimized"),
    *("tensorrt-plain", "tensorrt-folded", "tensorrt", "tensorrt-cudagraph"),
)
SERVED = ("--engine", "onnxruntime", "--engine", "tensorrt", "--device", "cuda", "--sharing", "1x0", "--rounds", "2")
PRECISIONS = ("fp32", "fp16")
# For SERVED_MODELS, beside PyTorch eager: ONNX Runtime's CUDA graphs; and lower precisions.
WIDER = {
    "others": (("onnx-cudagraph",), PRECISIONS),
    "precisions": (("tensorrt", "tensorrt-cudagraph"), ("fp32", "bf16", "int8")),
}
GRACE_S = 30.0  # in which a stopped step may end by itself


@dataclass(frozen=True)
class Step:
    module: str
    name: str
    arguments: tuple[str, ...]
    minutes: float

    @property
    def words(self) -> list[str]:
        return ["python", f"{self.module.replace('.', '/')}.py", *self.arguments]


def steps(output: Path) -> Iterator[Step]:
    """The most wanted steps first; each writes its result at once."""
    names = (*_each("--model", *COMPARED), *_each("--runtime", *RUNTIMES), *_each("--precision", *PRECISIONS))
    sizes = ("--batch", "5000", "--batch", "1", "--seconds", "8", "--device", "cuda")
    yield Step("benchmarks.latency", "latency", (*sizes, *names, "--json", str(output / "latency.json")), 27)
    in_torch = _each("--runtime", *(name for name in RUNTIMES if name.startswith("torch")))
    published = ("--published-configuration", *sizes, *in_torch, "--precision", "fp32")
    yield Step("benchmarks.latency", "latency", (*published, "--json", str(output / "published.json")), 6)
    for name, (runtimes, precisions) in WIDER.items():
        names = (*_each("--runtime", "torch", *runtimes), *_each("--precision", *precisions))
        written = ("--json", str(output / f"{name}.json"))
        yield Step("benchmarks.latency", "latency", (*sizes, *_each("--model", *SERVED_MODELS), *names, *written), 5)
    yield Step(
        "benchmarks.studies.study", "study", ("layout", "--device", "cuda", "--output", str(output / "layout")), 1
    )
    for model in SERVED_MODELS:
        where = ("--repository", str(output / "triton_repo"), "--timing-cache", str(output / "timing.cache"))
        yield Step("export.to_tensorrt", "tensorrt", ("--model", model, "--precision", "fp16", *where), 2)
    many = ("--precision", "fp16", "--batch", "5000", *_each("--in-flight", "1", "2"))
    memories = _each("--shared-memory", "none", "system", "cuda")
    few = (*_each("--model", "vitbn"), *_each("--precision", *PRECISIONS), *_each("--in-flight", "1", "16"))
    for name, load, minutes in (
        ("throughput-5000", (*_each("--model", *SERVED_MODELS), *many, *memories), 5),
        # An engine is tuned for the largest batch of its command.
        ("throughput", (*few, "--batch", "64"), 2),
        ("throughput-1", (*few, "--batch", "1"), 2),
    ):
        written = ("--json", str(output / f"{name}.json"))
        yield Step("benchmarks.throughput", "throughput", (*load, *SERVED, *written), minutes)
    alone = ("--engine", "tensorrt", "--precision", "fp16", "--batch", "5000", "--device", "cuda", "--seconds", "10")
    streamed = ("--streamed", "0", "--json", str(output / "added.json"))
    yield Step("benchmarks.throughput", "throughput", ("--preset", "added", *alone, *streamed), 2)
    yield Step("benchmarks.report", "report", ("build", str(output)), 1)


def _each(option: str, *values: str) -> tuple[str, ...]:
    return tuple(word for value in values for word in (option, value))


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
    """The checked steps, and what this machine lacks for them. `fetch`: downloads MNIST."""
    from export.engines.gpu import require_for_server
    from export.errors import ExportError

    missing = [*_missing_packages(), *_missing_programs_and_images(fetch)]
    try:
        ready = str(require_for_server())
    except ExportError as reason:
        ready, missing = f"not ready: {reason}", [*missing, "a GPU with TensorRT"]
    click.echo(f"GPU: {ready}")
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
        why = error.format_message() if isinstance(error, click.ClickException) else str(error)
        raise click.ClickException(f"{shlex.join(step.words)}: {why}") from error


def _missing_packages() -> Iterator[str]:
    for package in PACKAGES:
        try:
            importlib.import_module(package)
        except ImportError as error:
            yield f"{package} ({' '.join(str(error).split())})"


def _missing_programs_and_images(fetch: bool) -> Iterator[str]:
    """What the server's steps lack. Without MNIST only the last steps would fail, after a quarter of an hour."""
    from benchmarks.load.by_perf_analyzer import program
    from benchmarks.load.figures import Failed
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
    """Lets an interrupted step mark its result and end its server."""
    with suppress(subprocess.TimeoutExpired):
        process.wait(GRACE_S)
    process.kill()
    process.wait()
