from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from dataclasses import fields as fields_of
from statistics import median
from typing import Any

from benchmarks.load.saturation import saturation
from benchmarks.load.terms import Load, Sample, Target, engine_and_sharing, in_process, wire
from benchmarks.load.turns import Outcome, Who
from benchmarks.measure.tables import table

Row = Mapping[str, Any]
ALONE = {"protocol": "in process", "shared_memory": "none"}
HEADER = (
    *("model", "instances x threads", "images a request", "asked", "images/s", "in process"),
    *("p50 ms", "p90 ms", "p95 ms", "p99 ms", "queue ms", "compute ms"),
)


def fields(outcome: Outcome) -> list[Row]:
    """Medians over the rounds; then the loads that were left out."""
    missing = [_named(who, load) | {"reason": why} for (who, load), why in outcome.left_out.items()]
    return [*_rows(outcome), *missing]


def _rows(outcome: Outcome) -> Iterator[Row]:
    for (who, load), taken in outcome.samples.items():
        if isinstance(who, Target):
            served = {field.name: _middle(taken, field.name) for field in fields_of(Sample)}
            alone = outcome.samples.get(in_process(who, load), []) if load.in_flight else []
            yield {
                **_named(who, load),
                **served,
                **_compared(served, alone),
                "rounds_images_per_s": [each.images_per_s for each in taken],
                "rounds_p50_ms": [each.p50_ms for each in taken],
                "rounds_in_process_images_per_s": [each.images_per_s for each in alone],
            }


def _named(who: Who, load: Load) -> dict[str, Any]:
    reached = {"protocol": who.protocol, "shared_memory": who.shared_memory} if isinstance(who, Target) else ALONE
    return {**asdict(who.form), **reached, **asdict(who.sharing), **asdict(load)}


def _compared(served: Row, alone: Sequence[Sample]) -> Row:
    images_per_s, p50_ms = _middle(alone, "images_per_s"), _middle(alone, "p50_ms")
    return {
        "in_process_images_per_s": images_per_s,
        "in_process_p50_ms": p50_ms,
        "of_in_process": served["images_per_s"] / images_per_s if images_per_s else None,
        "added_ms": served["p50_ms"] - p50_ms if p50_ms else None,
    }


def _middle(samples: Sequence[Sample], name: str) -> float | None:
    values = [value for each in samples if (value := getattr(each, name)) is not None]
    return float(median(values)) if values else None


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
