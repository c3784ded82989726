"""The table of a machine's steadiness."""

from __future__ import annotations

from statistics import median

from benchmarks.measure.run import Run
from benchmarks.measure.steadiness import spread
from benchmarks.reporting.tables.table import Table


def steady(run: Run) -> Table:
    """Medians and spreads of matrix products and of single images over the windows of a run."""
    row = run.rows[0]
    gemm = {"products of one thread": "gemm_one_thread", f"products of {row['threads']} threads": "gemm_all_threads"}
    rows = [
        {"what": what, "median": f"{median(row[name]):,.0f} GFLOP/s", "spread": _spread(row[name])}
        for what, name in gemm.items()
    ]
    singles = row["singles_p50_ms"]
    rows.append({"what": "single images", "median": f"{median(singles):.3f} ms", "spread": _spread(singles)})
    return Table(rows)


def _spread(windows: list[float]) -> str:
    return f"{spread(windows):.0%} between {len(windows)} windows"
