"""The tables of servers under load and faults, and of `vitbn bulk`."""

from __future__ import annotations

from math import ceil

from benchmarks.measure.result_file import Row, Run
from benchmarks.measure.workload_settings import engine_and_sharing, transport
from benchmarks.reporting.tables.table import Cells, Table, find_row, measured_rows, number, ratio_text, times_faster

MAX_LOAD = 0.6  # share of a machine's rate that is used
CORES = 16  # of a machine
IMAGES_PER_S = 100_000  # that all machines together carry
# Scenario of `vitbn bench faults` -> its name on the page.
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
    """Calls over each transport beside the same calls in process."""
    timed = [row for row in run.rows if "transport" in row]
    rows = []
    for row in timed:
        in_process = find_row(timed, transport="in process", images_a_call=row["images_a_call"])
        cells = {"transport": row["transport"], "images a call": f"{row['images_a_call']:,}"}
        cells |= {f"p{percent} ms": f"{row[f'p{percent}_ms']:,.2f}" for percent in (50, 99)}
        cells |= {
            "images/s": f"{row['images_per_s']:,.0f}",
            "in process = 1": ratio_text(times_faster(row, in_process)),
        }
        cells |= {"added ms": f"{row['added_ms']:,.2f}"}
        rows.append(cells | {"client's part ms": f"{row['client_ms']:.2f}" if "client_ms" in row else "-"})
    return Table(rows)


def streamed(run: Run) -> str:
    """A line on the client's memory at the first and the last of ten readings; empty if nothing was streamed."""
    readings = [row for row in run.rows if "resident_mb" in row]
    texts = [f"{row['resident_mb']:.1f} MB after {row['images']:,} streamed images" for row in readings[::9]]
    return f"- The client's process holds {' and '.join(texts)}" if texts else ""


def throughput(run: Run) -> Table:
    """Rates and latencies of each load, and the server's rate relative to the same file in process."""
    unit, count = ("core", run.machine["threads"]) if run.machine["device"] == "cpu" else ("GPU", 1)
    rows = []
    for row in measured_rows(run):
        cells = {"model": row["model"], "protocol": transport(row), "instances x threads": engine_and_sharing(row)}
        cells |= {"load": _load(row), "images a request": str(row["batch"])}
        cells |= {"images/s": f"{row['images_per_s']:,.0f}"}
        cells |= {f"{unit}-seconds a million images": number(count * 1e6 / row["images_per_s"])}
        cells |= {f"p{percent} ms": f"{row[f'p{percent}_ms']:,.2f}" for percent in (50, 90, 95, 99)}
        cells |= {f"server: {name} ms": f"{row[f'server_{name}_ms']:,.2f}" for name in ("queue", "compute")}
        rounds = zip(row["rounds_images_per_s"], row["rounds_in_process_images_per_s"], strict=False)
        ratios = [served / in_process for served, in_process in rounds]
        span = f" ({min(ratios):.2f} to {max(ratios):.2f})" if ratios else ""
        rows.append(cells | {"in process = 1": f"{row['of_in_process']:.2f}{span}" if row["of_in_process"] else "-"})
    return Table(rows, 4)


def _load(row: Row) -> str:
    return f"{row['in_flight']} in flight" if row["in_flight"] else f"{row['rate']:,.0f} a second"


def beside(added: Run, loaded: Run) -> Table:
    """A table of docs/results.md: the network in process beside the server. `loaded`: a result of throughput."""
    timed = [row for row in added.rows if "transport" in row]
    many = max(row["images_a_call"] for row in timed)
    rows = []
    for title, count, name, unit in (
        (f"{many:,} images in one call, gRPC", many, "images_per_s", "{:,.0f} images/s"),
        ("one image, gRPC, p50", 1, "p50_ms", "{:.2f} ms"),
    ):
        in_process, served = (
            find_row(timed, transport=way, images_a_call=count)[name] for way in ("in process", "gRPC")
        )
        rows.append({"load": title, "in process": unit.format(in_process), "served": unit.format(served)})
    for title, batch, in_flight in (
        ("64 images a request, one in flight", 64, 1),
        ("one image a request, 8 in flight", 1, 8),
    ):
        row = find_row(measured_rows(loaded), model="vitbn", instances=1, batch=batch, in_flight=in_flight)
        in_process, served = (f"{row[name]:,.0f} images/s" for name in ("in_process_images_per_s", "images_per_s"))
        rows.append({"load": title, "in process": in_process, "served": served})
    return Table(rows)


def machines(run: Run) -> Table:
    """How many machines carry IMAGES_PER_S, one spare included, with the better sharing of the cores."""
    threads, rows = run.machine["threads"], []
    for model in ("vitbn", "vitbn-tiny", "cnn"):
        for batch in (1, 64):
            load = {"model": model, "batch": batch, "in_flight": 8}
            rate = max(row["images_per_s"] for row in measured_rows(run) if load.items() <= row.items())
            count = ceil(IMAGES_PER_S / (CORES * rate / threads * MAX_LOAD)) + 1
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
    """A table of docs/scale.md: the rate of `vitbn bulk` as a share of ONNX Runtime's."""
    (row,) = (row for row in run.rows if "whole_share" in row)
    comparisons = {
        "a loop over one batch in memory, without any start": "whole_share",
        "the same, after the start": "share_of_plain",
        "a program over the same file, from start to end, that throws its answers away": "share_of_program",
    }
    rows = []
    for title, name in comparisons.items():
        low, high = row[f"{name}_range"]
        rows.append({"compared with": title, "share of its rate": f"{row[name]:.2f} ({low:.2f} to {high:.2f})"})
    return Table(rows)


def counts(run: Run) -> Table:
    """All rows of a run, a column for each field; lists and objects are left out."""
    rows: list[Cells] = []
    for row in run.rows:
        scalars = {
            name: value for name, value in row.items() if value is not None and not isinstance(value, list | dict)
        }
        rows.append({name.replace("_", " "): _text(value) for name, value in scalars.items()})
    return Table(rows)


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.2f}" if 0 < abs(value) < 10 else f"{value:,.1f}"
    return f"{value:,}" if isinstance(value, int) else str(value)
