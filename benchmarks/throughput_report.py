"""What benchmarks/throughput.py measured, as rows, a table, a JSON file and plots.

In: the samples of all turns. Out: a row for each target and load, of medians over the rounds; those of a closed loop
hold the same process's figures, too. Loads that were left out stand in `missing`, with the reason.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from statistics import median
from typing import Any

import click

from benchmarks.load import Load, Sample, Target, Turn, in_process
from benchmarks.saturation import saturation

Row = dict[str, Any]


def result(samples: Mapping[Turn, Sequence[Sample]], left_out: Mapping[Turn, str], max_p99_ms: float) -> Row:
    """The rows, the loads that were left out, and where the server is saturated."""
    rows = list(_rows(samples))
    missing = [_named(who, load) | {"reason": why} for (who, load), why in left_out.items() if isinstance(who, Target)]
    points = saturation(rows, missing, max_p99_ms)
    return {"max_p99_ms": max_p99_ms, "rows": rows, "missing": missing, "saturation": points}


def _rows(samples: Mapping[Turn, Sequence[Sample]]) -> Iterator[Row]:
    for (who, load), taken in samples.items():
        if isinstance(who, Target):
            served = {field.name: _middle(taken, field.name) for field in fields(Sample)}
            alone = samples[in_process(who, load)] if load.in_flight else []
            yield {**_named(who, load), **served, **_compared(served, alone), "samples": [asdict(one) for one in taken]}


def _named(who: Target, load: Load) -> Row:
    reached = {"model": who.model, "protocol": who.protocol, "shared_memory": who.shared_memory}
    return {**reached, **asdict(who.way), **asdict(load)}


def _compared(served: Row, alone: Sequence[Sample]) -> Row:
    """The figures of the same process, and what the server takes of the one and adds to the other."""
    images_per_s, p50_ms = _middle(alone, "images_per_s"), _middle(alone, "p50_ms")
    return {
        "in_process_images_per_s": images_per_s,
        "in_process_p50_ms": p50_ms,
        "of_in_process": served["images_per_s"] / images_per_s if images_per_s else None,
        "added_ms": served["p50_ms"] - p50_ms if p50_ms else None,
        "in_process_samples": [asdict(one) for one in alone],
    }


def _middle(samples: Sequence[Sample], name: str) -> float | None:
    """The median of a figure; None where there is none."""
    values = [value for one in samples if (value := getattr(one, name)) is not None]
    return float(median(values)) if values else None


def show(measured: Row) -> None:
    """The table, what was left out, and the points of saturation."""
    from benchmarks.timing import table

    header = ["model", "instances x threads", "images a request", "asked", "images/s", "in process"]
    header += ["p50 ms", "p90 ms", "p95 ms", "p99 ms", "queue ms", "compute ms"]
    click.echo(table(header, [_cells(row) for row in measured["rows"]]))
    click.echo("Queue and compute: what the server's statistics say, means of a request.")
    for row in measured["missing"]:
        click.echo(f"{_target(row)}, {row['batch']} a request, {_asked(row)}: not measured, {row['reason']}")
    for point in measured["saturation"]:
        click.echo(f"{_target(point)}, {point['batch']} a request: {_saturated(point, measured['max_p99_ms'])}")


def _cells(row: Row) -> list[str]:
    alone = row["in_process_images_per_s"]
    times = ("p50_ms", "p90_ms", "p95_ms", "p99_ms", "server_queue_ms", "server_compute_ms")
    where = _target(row).removeprefix(f"{row['model']} ")
    counts = [str(row["batch"]), _asked(row), f"{row['images_per_s']:,.0f}", f"{alone:,.0f}" if alone else "-"]
    return [row["model"], where, *counts, *(f"{row[name]:.2f}" for name in times)]


def _target(row: Row) -> str:
    memory = ", shared memory" if row["shared_memory"] else ""
    return f"{row['model']} {row['instances']} x {row['threads'] or 'all'}, {row['protocol']}{memory}"


def _asked(row: Row) -> str:
    return f"{row['rate']:,g} images/s" if row["rate"] else f"{row['in_flight']} in flight"


def _saturated(point: Row, max_p99_ms: float) -> str:
    if point["by"] == "rate" and point["rate"] is None:
        return f"no rate was carried with p99 below {max_p99_ms:g} ms"
    at = f"{point['images_per_s']:,.0f} images/s at {_asked(point)}, p99 {point['p99_ms']:.1f} ms"
    if point["beyond"]:
        return f"not saturated by all that was asked, {at}"
    return f"{'largest rate carried' if point['by'] == 'rate' else 'no gain from more in flight after'} {at}"


def write(measured: Row, json_path: Path | None, plot_path: Path | None) -> None:
    """The JSON file with the environment, and the plots beside `plot_path`; each whole or not there."""
    from models.environment import describe
    from models.files import write_atomically

    environment = describe(len(os.sched_getaffinity(0)), "cpu")
    files: dict[Path, bytes] = {}
    if json_path:
        whole = {"benchmark": "throughput", "environment": environment, **measured}
        files[json_path] = json.dumps(whole, indent=2).encode()
    if plot_path:
        files |= _pictures(measured, f"{environment['cpu']}, {environment['threads']} cores", plot_path)
    for path, content in files.items():
        write_atomically(path, content)
        click.echo(f"Wrote {path}")


def _pictures(measured: Row, machine: str, path: Path) -> Iterator[tuple[Path, bytes]]:
    from benchmarks.throughput_plot import by_model

    footnote = f"{machine}; {measured['generator']}, {measured['rounds']} rounds of {measured['seconds']:g} s"
    for name, figure in by_model(measured["rows"], footnote).items():
        for kind in ("png", "svg"):
            buffer = io.BytesIO()
            figure.savefig(buffer, format=kind)
            yield path.with_name(f"{path.stem}-{name}.{kind}"), buffer.getvalue()
