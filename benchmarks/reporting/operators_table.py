from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.measure.tables import table

SHOWN = 12  # groups of nodes
HEADER = ("operator", "shapes", "count", "us", "share %", "GFLOP/s")


def text(title: str, graph: Mapping[str, Any]) -> str:
    cells = [
        (
            row["operator"],
            row.get("shapes", "all"),
            str(row["count"]),
            f"{row['p50_us']:,.0f}",
            f"{100 * row['share']:.1f}",
            f"{row['gflops_per_s']:,.0f}" if row["gflops_per_s"] is not None else "-",
        )
        for row in (*graph["operators"], *graph["groups"][:SHOWN])
    ]
    times = f"{graph['p50_ms']:.2f} ms a call, {graph['profiled_p50_ms']:.2f} under the profiler"
    return f"{title}: {times}, {graph['nodes_p50_ms']:.2f} in operators\n{table(HEADER, cells)}"
