"""Times our networks before and after each rewrite, at two depths, beside PyTorch and the CNN."""

from __future__ import annotations

import click

from benchmarks.measure.options import seconds_option
from benchmarks.measure.result_file import Record
from benchmarks.measure.rewrite_speedups import ROUNDS
from benchmarks.reporting.recorded_decorator import recorded

DEPTHS = (6, 1)


@click.command()
@seconds_option(90, f"At most, to measure each depth; {ROUNDS} rounds in any case.")
@recorded("rewrites")
def rewrites(record: Record, seconds: float) -> None:
    """Compare each rewrite alone, several and all of them with plain exports and PyTorch on the CPU, at equal depth.

    Every candidate classifies the same images as one call, and in its best way, which a short search finds.
    """
    from benchmarks.measure.rewrite_speedups import measure

    for depth in DEPTHS:
        measure(depth, seconds, record.add)
