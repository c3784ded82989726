from __future__ import annotations

from collections.abc import Sequence

from benchmarks.load.figures import engine_and_sharing, wire
from benchmarks.load.saturation import saturation
from benchmarks.measure.run import Row
from benchmarks.measure.tables import table

HEADER = (
    *("model", "instances x threads", "images a request", "asked", "images/s", "in process"),
    *("p50 ms", "p90 ms", "p95 ms", "p99 ms", "queue ms", "compute ms"),
)


def text(rows: Sequence[Row], device: str) -> str:
    measured, missing = ([row for row in rows if ("reason" in row) == left_out] for left_out in (False, True))
    lines = [table(HEADER, [_cells(row) for row in measured])]
    lines.append("Queue and compute: what the server's statistics say, means of a request.")
    lines.append(f"Server and process compute on: {device}")
    for row in missing:
        lines.append(f"{_target(row)}, {row['batch']} a request, {_asked(row)}: not measured, {row['reason']}")
    for point in saturation(rows):
        lines.append(f"{_target(point)}, {point['batch']} a request: {said(point)}")
    return "\n".join(lines)


def _cells(row: Row) -> list[str]:
    alone = row["in_process_images_per_s"]
    times = ("p50_ms", "p90_ms", "p95_ms", "p99_ms", "server_queue_ms", "server_compute_ms")
    where = f"{engine_and_sharing(row)}, {wire(row)}"
    counts = [str(row["batch"]), _asked(row), f"{row['images_per_s']:,.0f}", f"{alone:,.0f}" if alone else "-"]
    return [row["model"], where, *counts, *(f"{row[name]:.2f}" for name in times)]


def _target(row: Row) -> str:
    return f"{row['model']} {engine_and_sharing(row)}, {wire(row)}"


def _asked(row: Row) -> str:
    return f"{row['rate']:,g} images/s" if row["rate"] else f"{row['in_flight']} in flight"


def said(point: Row) -> str:
    if point["by"] == "rate" and point["rate"] is None:
        return f"no rate was carried with p99 below {point['max_p99_ms']:g} ms"
    at = f"{point['images_per_s']:,.0f} images/s at {_asked(point)}, p99 {point['p99_ms']:.1f} ms"
    if point["beyond"]:
        return f"not saturated by the largest load asked, {at}"
    return f"{'largest rate carried' if point['by'] == 'rate' else 'no gain from more in flight after'} {at}"
