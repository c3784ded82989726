from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.measure.engines import ENGINES
from benchmarks.measure.tables import table

HEADER = ("images a call", "transport", "p50 ms", "p99 ms", "images/s", "of in process", "added ms", "client ms")


def text(measured: Sequence[Mapping[str, Any]], device: str) -> str:
    rows = [row for row in measured if "transport" in row]
    memory = [row for row in measured if "resident_mb" in row]
    cells = [
        (
            f"{row['images_a_call']:,}",
            row["transport"],
            f"{row['p50_ms']:.2f}",
            f"{row['p99_ms']:.2f}",
            f"{row['images_per_s']:,.0f}",
            f"{row['of_in_process']:.2f}",
            f"{row['added_ms']:.2f}",
            f"{row['client_ms']:.2f}" if "client_ms" in row else "-",
        )
        for row in rows
    ]
    form = f"{rows[0]['model']}, {ENGINES[rows[0]['engine']].label} {rows[0]['precision']}"
    lines = [f"{form}, {rows[0]['batch_size']} images a request, device: {device}"]
    lines.append(table(HEADER, cells))
    if memory:
        before, after = (f"{step['images']:,} streamed images {step['resident_mb']:.1f} MB" for step in memory[::9])
        lines.append(f"Resident memory after {before}, after {after}")
    return "\n".join(lines)
