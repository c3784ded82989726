"""Command line: latency of every model in every runtime, in one interleaved run."""

from __future__ import annotations

import json
import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from models.config import MODEL_NAMES, TRANSFORMER_NAMES, ModelConfig, ModelName

if TYPE_CHECKING:
    from benchmarks.contestants import Contestant
    from benchmarks.timing import Durations
    from export.equivalence import Images

COMPARED = (*TRANSFORMER_NAMES, "cnn")
RUNTIME_NAMES = ("torch", "torch-sdpa", "onnx", "onnx-folded", "onnx-optimized")


class NameList(click.ParamType[list[str]]):
    """Comma-separated names out of a fixed set, without repetition."""

    name = "names"

    def __init__(self, allowed: tuple[str, ...]) -> None:
        self.allowed = allowed

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> list[str]:
        names = value.split(",")
        for name in names:
            if name not in self.allowed:
                self.fail(f"expected names out of {','.join(self.allowed)}, found {name!r}", param, ctx)
        return list(dict.fromkeys(names))


@click.command()
@click.option("--batch", type=click.IntRange(1), default=5000, show_default=True, help="Images a call.")
@click.option("--models", type=NameList(MODEL_NAMES), default=",".join(COMPARED), show_default=True)
@click.option("--runtimes", type=NameList(RUNTIME_NAMES), default=",".join(RUNTIME_NAMES), show_default=True)
@click.option("--depth", type=click.IntRange(1), default=6, show_default=True, help="Blocks of every transformer.")
@click.option("--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto", show_default=True)
@click.option("--threads", type=click.IntRange(1), help="Threads of each runtime.  [default: all cores]")
@click.option(
    "--seconds", type=click.FloatRange(1), default=60, show_default=True, help="To measure; 3 rounds at least."
)
@click.option(
    "--json", "json_path", type=click.Path(path_type=Path), help="Write every sample and the environment here."
)
def latency(
    batch: int,
    models: list[ModelName],
    runtimes: list[str],
    depth: int,
    device: str,
    threads: int | None,
    seconds: float,
    json_path: Path | None,
) -> None:
    """Time one call with --batch images: unfolded PyTorch, plain, folded and fully rewritten ONNX, at equal depth.

    Weights are those of the shipped checkpoint where one has this depth, else random (time does not depend on them).
    Every contestant is first checked against PyTorch. The last column is PyTorch's median of the same model over the
    row's.
    """
    import torch

    from benchmarks.contestants import example_images
    from export.equivalence import EquivalenceError
    from models.environment import describe

    threads = threads or len(os.sched_getaffinity(0))
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    elif device == "cuda" and not torch.cuda.is_available():
        raise click.ClickException("--device cuda: expected a CUDA device, found none")
    try:
        images = example_images(ModelConfig(), batch)
        contestants = _prepare(models, runtimes, depth, images, device, threads)
    except EquivalenceError as error:
        raise click.ClickException(str(error)) from error
    rows = _rows(contestants, _measure(contestants, images, seconds), batch)
    _print(rows, batch, threads, device)
    if json_path:
        from models.files import write_atomically

        result = {"environment": describe(threads, device), "batch": batch, "rows": rows}
        write_atomically(json_path, json.dumps(result, indent=2).encode())
        click.echo(f"Wrote {json_path}")


def _prepare(
    models: list[ModelName], runtimes: list[str], depth: int, images: Images, device: str, threads: int
) -> list[Contestant]:
    from benchmarks.contestants import Unavailable, contestant

    contestants = []
    for model in models:
        click.echo(f"Preparing {model}: building, exporting, checking against PyTorch", err=True)
        config = ModelConfig(model=model, depth=depth)
        for runtime in runtimes:
            try:
                contestants.append(contestant(config, runtime, images, device, threads))
            except Unavailable as reason:
                click.echo(reason, err=True)
    return contestants


def _measure(contestants: list[Contestant], images: Images, seconds: float) -> list[Durations]:
    from tqdm import tqdm

    from benchmarks.timing import time_interleaved

    with tqdm(total=100, unit="%", desc="Measuring", leave=False, disable=None) as bar:
        measured = time_interleaved(
            {contestant.name: partial(contestant.classify, images) for contestant in contestants},
            seconds,
            lambda share: bar.update(int(100 * share) - bar.n),
        )
    return [measured[contestant.name] for contestant in contestants]


def _rows(contestants: list[Contestant], measured: list[Durations], batch: int) -> list[dict[str, Any]]:
    """One JSON-ready row a contestant: percentiles in milliseconds, raw samples in nanoseconds."""
    pairs = list(zip(contestants, measured, strict=True))
    eager_ms = {c.model: durations.percentile_ms(50) for c, durations in pairs if c.runtime == "torch"}
    return [
        {
            "model": contestant.model,
            "depth": contestant.depth,
            "runtime": contestant.runtime,
            "p50_ms": (p50_ms := durations.percentile_ms(50)),
            "p90_ms": durations.percentile_ms(90),
            "p99_ms": durations.percentile_ms(99),
            "images_per_s": batch / p50_ms * 1000,
            "ratio_to_torch": eager_ms[contestant.model] / p50_ms if contestant.model in eager_ms else None,
            "samples_ns": durations.samples_ns,
        }
        for contestant, durations in pairs
    ]


def _print(rows: list[dict[str, Any]], batch: int, threads: int, device: str) -> None:
    from benchmarks.contestants import RUNTIMES
    from benchmarks.timing import table

    header = ("model", "runtime", "depth", "p50 ms", "p90 ms", "p99 ms", "images/s", "x PyTorch")
    click.echo(
        table(
            header,
            [
                (
                    row["model"],
                    RUNTIMES[row["runtime"]],
                    str(row["depth"] or "-"),
                    *(f"{row[key]:.2f}" for key in ("p50_ms", "p90_ms", "p99_ms")),
                    f"{row['images_per_s']:,.0f}",
                    f"{row['ratio_to_torch']:.2f}" if row["ratio_to_torch"] else "-",
                )
                for row in rows
            ],
        )
    )
    samples = len(rows[0]["samples_ns"])
    click.echo(f"batch {batch}, {threads} threads, {device}, float32, {samples} interleaved samples a row")


if __name__ == "__main__":
    latency()
