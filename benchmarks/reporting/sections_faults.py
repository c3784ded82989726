"""The section about faults: what clients saw when something broke. Empty without a result of benchmarks/faults.py."""

from __future__ import annotations

from benchmarks.reporting.page import Block, Table, Text
from benchmarks.reporting.sources import Section, Sources, machine

COLUMNS = {
    "scenario": "scenario",
    "sent": "sent",
    "right": "right",
    "wrong": "wrong",
    "refused": "refused",
    "failed": "failed",
    "p50_ms": "p50 ms",
    "p99_ms": "p99 ms",
    "worst_ms": "worst ms",
    "refusal_p99_ms": "refusal p99 ms",
    "recovery_s": "recovery s",
    "memory_grown_mb": "memory grown MB",
    "memory_mb_per_hour": "memory MB/hour",
    "descriptors_per_hour": "descriptors/hour",
}


def faults(sources: Sources) -> Section:
    """A row per scenario."""
    blocks: list[Block] = []
    for result in sources.all("faults"):
        rows = tuple(tuple(_shown(row.get(name)) for name in COLUMNS) for row in result["rows"])
        blocks += [Text(f"A supervised server, {machine(result)}: `{result['command']}`.")]
        blocks += [Table(tuple(COLUMNS.values()), rows)]
    return Section("What do clients see when something breaks?", (), tuple(blocks))


def _shown(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:,.1f}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)
