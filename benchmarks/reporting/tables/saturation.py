"""The lines on a server's saturation points, from the rows of benchmarks/throughput.py.

- Open loop: the largest rate that is carried, which means that all images but a share of `SHORTFALL` are answered and
  p99 is within its limit.
- Closed loop: the fewest requests in flight whose throughput is within `SHORTFALL` of the best.

`beyond`: even the largest load did not saturate the server.
"""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.measure.result_file import Row, Run
from benchmarks.measure.workload_settings import engine_and_sharing, transport
from benchmarks.reporting.tables.table import group_rows

SHORTFALL = 0.05
SETTINGS = (
    *("model", "engine", "precision", "protocol", "shared_memory", "instances", "threads", "batch"),
    "max_p99_ms",
)


def saturated(run: Run) -> str:
    """A line for each server that was loaded up to its saturation; empty if none was."""
    lines = []
    for point in saturation(run.rows):
        if not point["beyond"]:
            server = f"{point['model']}, {engine_and_sharing(point)}, {transport(point)}, {point['batch']} a request"
            lines.append(f"- {server}: {_saturation_text(point)}")
    return "\n".join(lines)


def _saturation_text(point: Row) -> str:
    if point["by"] == "rate" and point["rate"] is None:
        return f"no rate was carried with p99 below {point['max_p99_ms']:g} ms"
    load = f"{point['rate']:,g} images/s" if point["rate"] else f"{point['in_flight']} in flight"
    limit = "largest rate carried" if point["by"] == "rate" else "no gain from more in flight after"
    return f"{limit} {point['images_per_s']:,.0f} images/s at {load}, p99 {point['p99_ms']:.1f} ms"


def carried(row: Row) -> bool:
    reached: bool = row["images_per_s"] >= (1 - SHORTFALL) * row["rate"]
    return reached and bool(row["p99_ms"] <= row["max_p99_ms"])


def saturation(rows: Sequence[Row]) -> list[Row]:
    """The points of each group of rows with the same settings. If no rate was carried, the point has the rate None."""
    groups = group_rows((row for row in rows if row["protocol"] != "in process"), *SETTINGS)
    points = []
    for values, group in sorted(groups.items()):
        settings = dict(zip(SETTINGS, values, strict=True))
        measured = [row for row in group if "images_per_s" in row]  # the others have a `reason`
        largest = max((row["rate"] for row in group if row["rate"]), default=None)
        if largest is not None:
            carried_rows = [row for row in measured if row["rate"] and carried(row)]
            best = max(carried_rows, key=lambda row: float(row["rate"]), default={})
            points.append(_point(settings, "rate", best, best.get("rate") == largest))
        closed = sorted((row for row in measured if row["in_flight"]), key=lambda row: int(row["in_flight"]))
        if closed:
            enough = (1 - SHORTFALL) * max(row["images_per_s"] for row in closed)
            first = next(row for row in closed if row["images_per_s"] >= enough)
            points.append(_point(settings, "in_flight", first, first is closed[-1]))
    return points


def _point(settings: Row, by: str, row: Row, beyond: bool) -> Row:
    figures = {name: row.get(name) for name in ("rate", "in_flight", "images_per_s", "p99_ms")}
    return {**settings, "by": by, **figures, "beyond": beyond}
