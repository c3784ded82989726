from __future__ import annotations

from pathlib import Path

import click

from benchmarks.measure.choices import json_option, seconds_option
from benchmarks.measure.machine import cores
from benchmarks.measure.rewritten import ROUNDS, SEARCHED


@click.command()
@click.option("--depth", "depths", type=click.IntRange(1), multiple=True, default=(6, 1), show_default=True)
@click.option("--images", "count", type=click.IntRange(SEARCHED), default=5000, show_default=True)
@seconds_option(90, f"At most, to measure each depth; {ROUNDS} rounds in any case.")
@json_option
def rewrites(depths: tuple[int, ...], count: int, seconds: float, json_path: Path | None) -> None:
    """Compare each rewrite alone, several and all of them with plain exports and PyTorch on the CPU, at equal depth.

    Every candidate classifies the same images as one call, and in its best way, which a short search finds.
    """
    from benchmarks.measure.rewritten import measure
    from benchmarks.measure.run import Row, recording
    from benchmarks.reporting.tables import show

    measured: list[Row] = []

    def add(rows: list[Row]) -> None:
        measured.extend({"at_depth": depth, "images": count, **row} for row in rows)
        record.update(measured)

    with recording(json_path, cores()) as record:
        for depth in depths:
            measure(depth, count, seconds, add)
        click.echo(show(record.run(), "rewrites"))
