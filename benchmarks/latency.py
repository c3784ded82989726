"""Command line: latency of every model in every runtime, in one interleaved run."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from benchmarks.choices import MicroBatch, NameList
from benchmarks.runtimes import DEFAULT_RUNTIMES, PRECISIONS, RUNTIMES, Device, Precision
from benchmarks.ways import cores
from models.config import MODEL_NAMES, ModelConfig, ModelName

if TYPE_CHECKING:
    from benchmarks.measuring import Options, Row, Wanted

COMPARED: tuple[ModelName, ...] = ("vit", "vitbnffn", "vitbn", "cnn")
DEFAULT_BATCH, DEFAULT_DEPTH = 5000, 6
SWEPT_RUNTIMES = ("torch", "onnx-optimized")

PUBLISHED_DEPTHS: dict[ModelName, int] = {"vit": 6, "vitbnffn": 1, "vitbn": 1}
CAVEAT = (
    "The published comparison gives ViT six blocks and the BatchNorm models one: what it shows is the depth, not the"
    " norm. Without --published-configuration all have the same depth."
)


@click.command()
@click.option("--batch", "batches", type=click.IntRange(1), multiple=True, help="Images a call; repeat.  [5000]")
@click.option("--models", type=NameList(MODEL_NAMES), default=",".join(COMPARED), show_default=True)
@click.option(
    "--runtimes",
    type=NameList(tuple(RUNTIMES)),
    help=f"all, or some of {', '.join(RUNTIMES)}.  [{','.join(DEFAULT_RUNTIMES)}; --sweep: {','.join(SWEPT_RUNTIMES)}]",
)
@click.option("--precision", "precisions", type=NameList(PRECISIONS), default="fp32", show_default=True)
@click.option("--depth", type=click.IntRange(1), help=f"Blocks of every transformer.  [{DEFAULT_DEPTH}]")
@click.option("--device", "wanted", type=click.Choice(["auto", "cpu", "cuda"]), default="auto", show_default=True)
@click.option("--threads", type=click.IntRange(1), help="Threads of each runtime.  [all cores]")
@click.option("--micro-batch", type=MicroBatch(), help="Images at a time; auto searches.  [the whole batch]")
@click.option("--seconds", type=click.FloatRange(1), default=60, show_default=True, help="At most, for a batch size.")
@click.option("--memory", is_flag=True, help="Peak memory on the CPU: a process of its own for each row.")
@click.option("--published-configuration", "published", is_flag=True, help="ViT at depth 6, BatchNorm models at 1.")
@click.option("--sweep", is_flag=True, help="Time against batch size, depth and width instead of one comparison.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write every sample and the environment.")
@click.option("--plot", "plot_path", type=click.Path(path_type=Path), help="Draw to FILE, as PNG and as SVG.")
def latency(
    batches: tuple[int, ...],
    models: list[ModelName],
    runtimes: list[str] | None,
    precisions: list[Precision],
    depth: int | None,
    wanted: str,
    threads: int | None,
    micro_batch: Any,
    seconds: float,
    memory: bool,
    published: bool,
    sweep: bool,
    json_path: Path | None,
    plot_path: Path | None,
) -> None:
    """Time calls with --batch images in PyTorch, ONNX Runtime and more, before and after the rewrites.

    Weights are those of the shipped checkpoint where one has this depth, else random (time does not depend on them).
    Every contestant is first compared with PyTorch eager. All take turns, until the medians are stable or --seconds
    are spent; "x PyTorch" is how many times as fast as PyTorch eager, float32, the row is, with a 95 % interval.
    """
    if published and (sweep or depth or not set(models) <= set(COMPARED)):
        others = "--sweep, --depth and models other than"
        raise click.UsageError(f"--published-configuration excludes {others} {','.join(COMPARED)}")
    from benchmarks.measuring import Options
    from export.equivalence import EquivalenceError

    device = _device(wanted)
    options = Options(device, threads or cores(), seconds, micro_batch, memory)
    try:
        if sweep:
            result = _sweep(models, runtimes or SWEPT_RUNTIMES, precisions, batches, depth or DEFAULT_DEPTH, options)
        else:
            depths = PUBLISHED_DEPTHS if published else {}
            contestants: list[Wanted] = [
                (ModelConfig(model=model, depth=depths.get(model, depth or DEFAULT_DEPTH)), runtime, precision)
                for model in models
                for runtime in runtimes or DEFAULT_RUNTIMES
                for precision in precisions
            ]
            result = _compare(contestants, batches or (DEFAULT_BATCH,), options, CAVEAT if published else None)
    except EquivalenceError as error:
        raise click.ClickException(str(error)) from error
    _write(result, json_path, plot_path)


def _device(wanted: str) -> Device:
    import torch

    if wanted == "cuda" and not torch.cuda.is_available():
        raise click.ClickException("--device cuda: expected a CUDA device, found none")
    return "cpu" if wanted == "cpu" or not torch.cuda.is_available() else "cuda"


def _note(line: str) -> None:
    click.echo(line, err=True)


def _compare(wanted: list[Wanted], batches: Sequence[int], options: Options, caveat: str | None) -> dict[str, Any]:
    """Measures and prints; the content of the JSON file."""
    from benchmarks.latency_table import batch_table, limits_line, published_lines, unstable_line
    from benchmarks.measuring import Missing, measure, prepare
    from benchmarks.roofline import limits

    missing = Missing(_note)
    contestants = prepare(wanted, batches, options, missing)
    if not contestants:
        raise click.ClickException("nothing to measure: expected one of --runtimes on this machine, found none")
    precisions = tuple(dict.fromkeys(precision for _, _, precision in wanted))
    reachable = limits(options.device, options.threads, precisions)
    rows: list[Row] = []
    for batch in batches:
        rows += (found := measure(contestants, batch, options, reachable, f"batch {batch}", missing))
        click.echo(batch_table(found))
    click.echo(limits_line(reachable))
    used = {runtime for _, runtime, _ in wanted}
    if others := [name for name in RUNTIMES if name not in used]:
        click.echo(f"Other runtimes: --runtimes all, or some of {', '.join(others)}")
    if caveat:
        for line in (*published_lines(rows), caveat):
            click.echo(line)
    if warning := unstable_line(rows):
        _note(warning)
    about = {"benchmark": "latency", **_about(options), "limits": reachable, "caveat": caveat}
    return about | {"missing": missing.rows, "rows": rows}


def _sweep(
    models: Sequence[ModelName],
    runtimes: Sequence[str],
    precisions: Sequence[Precision],
    batches: Sequence[int],
    depth: int,
    options: Options,
) -> dict[str, Any]:
    from benchmarks.latency_table import unstable_line
    from benchmarks.measuring import Missing
    from benchmarks.roofline import limits
    from benchmarks.sweep import Contest, run

    contest = Contest(tuple(models), tuple(runtimes), tuple(precisions), depth)
    reachable = limits(options.device, options.threads, tuple(precisions))
    missing = Missing(_note)
    axes = run(contest, batches, options, reachable, click.echo, missing)
    if warning := unstable_line([row for rows in axes.values() for row in rows]):
        _note(warning)
    return {"benchmark": "sweep", **_about(options), "limits": reachable, "missing": missing.rows, "axes": axes}


def _about(options: Options) -> dict[str, Any]:
    from models.environment import describe

    files = ("--json", "--plot")  # of this machine, not of the measurement
    arguments = ["FILE" if before in files else argument for before, argument in pairwise(["", *sys.argv[1:]])]
    command = " ".join(["python benchmarks/latency.py", *arguments])
    return {"command": command, "environment": describe(options.threads, options.device)}


def _write(result: dict[str, Any], json_path: Path | None, plot_path: Path | None) -> None:
    from models.files import write_atomically

    files: dict[Path, bytes] = {}
    if json_path:
        files[json_path] = json.dumps(result, indent=2).encode()
    if plot_path:
        from benchmarks.latency_plots import pictures

        files |= pictures(result, plot_path)
    for path, content in files.items():
        write_atomically(path, content)
        click.echo(f"Wrote {path}")


if __name__ == "__main__":
    latency()
