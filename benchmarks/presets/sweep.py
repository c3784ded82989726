from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from benchmarks.contest.runtimes import COMPARED, DEFAULT_PRECISIONS, PRECISIONS, RUNTIMES, Precision
from benchmarks.measure.choices import NameList, json_option, seconds_option
from benchmarks.measure.machine import cores
from models.config import MODEL_NAMES

if TYPE_CHECKING:
    from benchmarks.contest.measuring import Row
    from benchmarks.contest.sweep import Axis

DEPTH = 6


@click.command()
@click.option("--batch", "batches", type=click.IntRange(1), multiple=True, help="Images per call; repeatable.")
@click.option("--models", type=NameList(MODEL_NAMES), default=",".join(COMPARED), show_default=True)
@click.option("--runtimes", type=NameList(tuple(RUNTIMES)), default="torch,onnx-optimized", show_default=True)
@click.option("--precision", "precisions", type=NameList(PRECISIONS), help="[CPU: fp32; GPU: fp32,tf32,fp16]")
@click.option("--depth", type=click.IntRange(1), default=DEPTH, show_default=True, help="On the other axes.")
@click.option("--device", "wanted", type=click.Choice(["auto", "cpu", "cuda"]), default="auto", show_default=True)
@click.option("--threads", type=click.IntRange(1), help="Threads of each runtime.  [all cores]")
@seconds_option(60, "At most, for the rounds of all; three rounds of each in any case.")
@json_option
@click.pass_context
def sweep(
    context: click.Context,
    batches: tuple[int, ...],
    models: list[Any],
    runtimes: list[str],
    precisions: list[Precision] | None,
    depth: int,
    wanted: str,
    threads: int | None,
    seconds: float,
    json_path: Path | None,
) -> None:
    """Time calls against batch size, depth and width."""
    from benchmarks.contest.contestants import Missing, Options
    from benchmarks.contest.devices import choose
    from benchmarks.contest.measuring import finish
    from benchmarks.contest.roofline import limits
    from benchmarks.contest.sweep import Swept, run
    from benchmarks.measure.run import recording
    from benchmarks.reporting.latency_table import batch_table, unstable_lines

    device, missing = choose(wanted), Missing()
    options = Options(device, threads or cores(), seconds)
    kinds = tuple(precisions or DEFAULT_PRECISIONS[device])
    rows: list[Row] = []

    def add(axis: Axis, measured: list[Row]) -> None:
        rows.extend({"axis": axis, **row} for row in measured)
        record.update([*rows, *missing.rows], reachable)
        click.echo(batch_table(measured, with_dim=axis == "dim"))

    with recording(json_path, options.threads, device) as record:
        reachable = limits(device, options.threads, kinds)
        swept = Swept(tuple(models), tuple(runtimes), kinds, depth)
        run(swept, batches, options, reachable, missing, add)
        finish(record, rows, missing)
    for line in unstable_lines(rows):
        click.echo(line)
    context.exit(1 if missing.wrong else 0)
