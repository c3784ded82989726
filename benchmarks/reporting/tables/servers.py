"""Tables of servers: load, faults and bulk runs."""

from __future__ import annotations

from math import ceil

from benchmarks.load.figures import engine_and_sharing, wire
from benchmarks.load.saturation import saturation
from benchmarks.measure.run import Row, Run
from benchmarks.reporting.tables.table import Cells, Table, cell, find, measured, number, times_faster

RESERVE, CORES, WANTED = 0.6, 16, 100_000  # highest load of a machine, its cores, images a second
DRILLS = {
    "stub-killed": "SIGKILL of a model's process",
    "stub-stopped": "SIGSTOP of a model's process",
    "server-killed": "SIGKILL of the server",
    "server-killed-retries": "the same, a client with its default retries",
    "nested-json": "150,000 open brackets, which end the server",
    "huge-shape": "a huge shape, which ends the server",
    "newest-broken": "newest version broken at the start",
    "sigterm": "SIGTERM",
    "publish": "20 publications",
    "slow-connections": "500 slow connections to the page",
}


def added(run: Run) -> Table:
    timed = [row for row in run.rows if "transport" in row]
    rows = []
    for row in timed:
        alone = find(timed, transport="in process", images_a_call=row["images_a_call"])
        cells = {"transport": row["transport"], "images a call": f"{row['images_a_call']:,}"}
        cells |= {f"p{percent} ms": f"{row[f'p{percent}_ms']:,.2f}" for percent in (50, 99)}
        cells |= {"images/s": f"{row['images_per_s']:,.0f}", "in process = 1": cell(times_faster(row, alone))}
        cells |= {"added ms": f"{row['added_ms']:,.2f}"}
        rows.append(cells | {"client's part ms": f"{row['client_ms']:.2f}" if "client_ms" in row else "-"})
    return Table(rows)


def streamed(run: Run) -> str:
    """A line; empty if nothing was streamed."""
    steps = [row for row in run.rows if "resident_mb" in row]
    said = [f"{each['resident_mb']:.1f} MB after {each['images']:,} streamed images" for each in steps[::9]]
    return f"- The client's process holds {' and '.join(said)}" if said else ""


def throughput(run: Run) -> Table:
    unit, count = ("core", run.machine["threads"]) if run.machine["device"] == "cpu" else ("GPU", 1)
    rows = []
    for row in measured(run):
        cells = {"model": row["model"], "protocol": wire(row), "instances x threads": engine_and_sharing(row)}
        cells |= {"load": _load(row), "images a request": str(row["batch"])}
        cells |= {"images/s": f"{row['images_per_s']:,.0f}"}
        cells |= {f"{unit}-seconds a million images": number(count * 1e6 / row["images_per_s"])}
        cells |= {f"p{percent} ms": f"{row[f'p{percent}_ms']:,.2f}" for percent in (50, 90, 95, 99)}
        cells |= {f"server: {name} ms": f"{row[f'server_{name}_ms']:,.2f}" for name in ("queue", "compute")}
        ratios = [
            served / alone
            for served, alone in zip(row["rounds_images_per_s"], row["rounds_in_process_images_per_s"], strict=False)
        ]
        span = f" ({min(ratios):.2f} to {max(ratios):.2f})" if ratios else ""
        rows.append(cells | {"in process = 1": f"{row['of_in_process']:.2f}{span}" if row["of_in_process"] else "-"})
    return Table(rows, 4)


def _load(row: Row) -> str:
    return f"{row['in_flight']} in flight" if row["in_flight"] else f"{row['rate']:,.0f} a second"


def saturated(run: Run) -> str:
    lines = [
        f"- {point['model']}, {engine_and_sharing(point)}, {wire(point)}, {point['batch']} a request: {_said(point)}"
        for point in saturation(run.rows)
        if not point["beyond"]
    ]
    return "\n".join(lines)


def _said(point: Row) -> str:
    if point["by"] == "rate" and point["rate"] is None:
        return f"no rate was carried with p99 below {point['max_p99_ms']:g} ms"
    asked = f"{point['rate']:,g} images/s" if point["rate"] else f"{point['in_flight']} in flight"
    what = "largest rate carried" if point["by"] == "rate" else "no gain from more in flight after"
    return f"{what} {point['images_per_s']:,.0f} images/s at {asked}, p99 {point['p99_ms']:.1f} ms"


def beside(added: Run, loaded: Run) -> Table:
    """A table of docs/results.md: vitbn in process beside the server."""
    timed = [row for row in added.rows if "transport" in row]
    many = max(row["images_a_call"] for row in timed)
    rows = []
    for title, count, name, unit in (
        (f"{many:,} images in one call, gRPC", many, "images_per_s", "{:,.0f} images/s"),
        ("one image, gRPC, p50", 1, "p50_ms", "{:.2f} ms"),
    ):
        alone, served = (find(timed, transport=way, images_a_call=count)[name] for way in ("in process", "gRPC"))
        rows.append({"load": title, "in process": unit.format(alone), "served": unit.format(served)})
    for title, batch, in_flight in (
        ("64 images a request, one in flight", 64, 1),
        ("one image a request, 8 in flight", 1, 8),
    ):
        row = find(measured(loaded), model="vitbn", instances=1, batch=batch, in_flight=in_flight)
        both = {"in process": row["in_process_images_per_s"], "served": row["images_per_s"]}
        rows.append({"load": title} | {name: f"{rate:,.0f} images/s" for name, rate in both.items()})
    return Table(rows)


def machines(run: Run) -> Table:
    """How many machines carry WANTED images a second, one spare included, with the better sharing of the cores."""
    threads, rows = run.machine["threads"], []
    for model in ("vitbn", "vitbn-tiny", "cnn"):
        for batch in (1, 64):
            load = {"model": model, "batch": batch, "in_flight": 8}
            rate = max(row["images_per_s"] for row in measured(run) if load.items() <= row.items())
            count = ceil(WANTED / (CORES * rate / threads * RESERVE)) + 1
            cells = {"network": f"`{model}`", "images a request": str(batch)}
            cells |= {f"images/s, {threads} cores": f"{rate:,.0f}", "images/s a core": f"{rate / threads:,.0f}"}
            rows.append(cells | {f"machines of {CORES} cores": str(count)})
    return Table(rows)


def drills(run: Run) -> Table:
    """A table of docs/results.md: what faults cost clients."""
    rows = []
    for row in (row for row in run.rows if row["scenario"] in DRILLS):
        cells = {"scenario": DRILLS[row["scenario"]], "sent": f"{row['sent']:,}", "failed": str(row["failed"])}
        cells |= {"wrong": str(row["wrong"]), "worst ms": f"{row['worst_ms']:,.0f}"}
        rows.append(cells | {"right again after s": f"{row['recovery_s']:.1f}" if row.get("recovery_s") else "-"})
    return Table(rows)


def shares(run: Run) -> Table:
    """A table of docs/scale.md: vitbn bulk's share of ONNX Runtime's rate."""
    (row,) = (row for row in run.rows if "whole_share" in row)
    lines = {
        "a loop over one batch in memory, without any start": "whole_share",
        "the same, after the start": "share_of_plain",
        "a program over the same file, from start to end, that throws its answers away": "share_of_program",
    }
    ranges = {name: " to ".join(f"{end:.2f}" for end in row[f"{name}_range"]) for name in lines.values()}
    return Table(
        [
            {"compared with": title, "share of its rate": f"{row[name]:.2f} ({ranges[name]})"}
            for title, name in lines.items()
        ]
    )


def counts(run: Run) -> Table:
    """All rows of a run, a column for each plain figure."""
    rows: list[Cells] = []
    for row in run.rows:
        rows.append({name.replace("_", " "): _shown(value) for name, value in row.items() if _is_plain(value)})
    return Table(rows)


def _is_plain(value: object) -> bool:
    return value is not None and not isinstance(value, (list, dict))


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.2f}" if 0 < abs(value) < 10 else f"{value:,.1f}"
    return f"{value:,}" if isinstance(value, int) else str(value)
