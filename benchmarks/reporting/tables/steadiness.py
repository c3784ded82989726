"""The table of a machine's steadiness."""

from __future__ import annotations

from statistics import median

from benchmarks.measure.result_file import Run
from benchmarks.measure.steadiness import SINGLE_IMAGES, spread, watched
from benchmarks.reporting.tables.table import Table


def steady(run: Run) -> Table:
    """Medians and spreads of matrix products and of single images over the windows of a run."""
    rows = []
    for what, windows in watched(run.rows[0]).items():
        middle = median(windows)
        text = f"{middle:.3f} ms" if what == SINGLE_IMAGES else f"{middle:,.0f} GFLOP/s"
        rows.append({"what": what, "median": text, "spread": f"{spread(windows):.0%} between {len(windows)} windows"})
    return Table(rows)
