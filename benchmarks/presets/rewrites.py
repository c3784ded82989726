"""Out: times of our networks before and after each rewrite, at two depths, beside PyTorch and the CNN."""

from __future__ import annotations

from pathlib import Path

import click

from benchmarks.measure.choices import json_option, seconds_option
from benchmarks.measure.devices import cores
from benchmarks.measure.rewritten import ROUNDS

DEPTHS = (6, 1)


@click.command()
@seconds_option(90, f"At most, to measure each depth; {ROUNDS} rounds in any case.")
@json_option
def rewrites(seconds: float, json_path: Path | None) -> None:
    """Compare each rewrite alone, several and all of them with plain exports and PyTorch on the CPU, at equal depth.

    Every candidate classifies the same images as one call, and in its best way, which a short search finds.
    """
    from benchmarks.measure.rewritten import measure
    from benchmarks.measure.run import recording
    from benchmarks.reporting.tables import show

    with recording(json_path, cores()) as record:
        for depth in DEPTHS:
            measure(depth, seconds, record.add)
        click.echo(show(record.run(), "rewrites"))
