"""The same candidates at many batch sizes, depths and widths."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from benchmarks.measure.candidate import Candidate, candidates
from benchmarks.measure.choices import PRECISION_HELP, chosen, json_option, seconds_option, several
from benchmarks.measure.engines import COMPARED, DEFAULT_PRECISIONS, PRECISIONS, RUNTIMES, Device, Precision
from benchmarks.measure.machine import cores
from benchmarks.measure.workload import Workload
from models.config import MODEL_NAMES, ModelConfig

if TYPE_CHECKING:
    from benchmarks.measure.called import Missing
    from benchmarks.measure.rounds import Limits
    from benchmarks.measure.run import Row

DEPTH = 6
BATCHES = (1, 4, 16, 64, 256, 1024, 5000)
DEPTHS = (1, 2, 3, 6, 9, 12)
DIMS = (32, 64, 128, 256)
AXIS_BATCH = 64  # images per call on the axes of depth and width

Axis = Literal["batch", "depth", "dim"]


@dataclass(frozen=True)
class Swept:
    """The axes of batch and width use `depth`."""

    models: Sequence[Any]
    runtimes: Sequence[str]
    precisions: Sequence[Precision]
    depth: int
    threads: int
    device: Device

    def candidates(self, config: ModelConfig) -> list[Candidate]:
        """Networks without depth only in the published geometry."""
        published = config.dim == ModelConfig.dim and config.depth == self.depth
        configs = [replace(config, model=model) for model in self.models]
        named = [(each.model, each) for each in configs if each.is_transformer or published]
        return candidates(named, self.runtimes, self.precisions, self.threads, self.device)


@click.command()
@click.option("--batch", "batches", type=click.IntRange(1), multiple=True, help="Images per call; repeatable.")
@several("--model", "models", MODEL_NAMES, default=COMPARED, show_default=True)
@several("--runtime", "runtimes", RUNTIMES, default=("torch", "onnx-optimized"), show_default=True)
@several("--precision", "precisions", PRECISIONS, help=PRECISION_HELP)
@click.option("--depth", type=click.IntRange(1), default=DEPTH, show_default=True, help="On the other axes.")
@click.option("--device", "wanted", type=click.Choice(["auto", "cpu", "cuda"]), default="auto", show_default=True)
@click.option("--threads", type=click.IntRange(1), help="Threads of each runtime.  [all cores]")
@seconds_option(60, "At most, for the rounds of all; three rounds of each in any case.")
@json_option
@click.pass_context
def sweep(
    context: click.Context,
    batches: tuple[int, ...],
    models: tuple[str, ...],
    runtimes: tuple[str, ...],
    precisions: tuple[Precision, ...],
    depth: int,
    wanted: str,
    threads: int | None,
    seconds: float,
    json_path: Path | None,
) -> None:
    """Time calls against batch size, depth and width."""
    from benchmarks.measure.called import Missing
    from benchmarks.measure.devices import choose
    from benchmarks.measure.roofline import limits
    from benchmarks.measure.rounds import finish
    from benchmarks.measure.run import recording
    from benchmarks.reporting.tables.calls import batch_table, unstable_lines

    device, threads, missing = choose(wanted), threads or cores(), Missing()
    kinds = chosen(precisions, PRECISIONS) or DEFAULT_PRECISIONS[device]
    swept = Swept(chosen(models, MODEL_NAMES), chosen(runtimes, RUNTIMES), kinds, depth, threads, device)
    rows: list[Row] = []

    def add(axis: Axis, measured: list[Row]) -> None:
        rows.extend({"axis": axis, **row} for row in measured)
        record.update([*rows, *missing.rows], reachable)
        click.echo(batch_table(measured, with_dim=axis == "dim"))

    with recording(json_path, threads, device) as record:
        reachable = limits(device, threads, kinds)
        _run(swept, batches or BATCHES, seconds, reachable, missing, add)
        finish(record, rows, missing)
    for line in unstable_lines(rows):
        click.echo(line)
    context.exit(1 if missing.wrong else 0)


def _run(
    swept: Swept,
    batches: Sequence[int],
    seconds: float,
    limits: Limits,
    missing: Missing,
    add: Callable[[Axis, list[Row]], None],
) -> None:
    from benchmarks.measure.called import build_all
    from benchmarks.measure.rounds import measure

    share = seconds / (len(batches) + len(DEPTHS) + len(DIMS))

    def along(axis: Axis, config: ModelConfig, workloads: list[Workload], title: str) -> None:
        built = build_all(swept.candidates(config), workloads, missing)
        for workload in workloads if built else ():
            said = title or f"batch {workload.batch}"
            measure(built, workload, share, limits, said, missing, lambda rows: add(axis, rows))

    middle, alike = ModelConfig(depth=swept.depth), [Workload(AXIS_BATCH)]
    along("batch", middle, [Workload(batch) for batch in batches], "")
    for depth in DEPTHS:
        along("depth", replace(middle, depth=depth), alike, f"depth {depth}")
    for dim in DIMS:
        along("dim", replace(middle, dim=dim), alike, f"dim {dim}")
