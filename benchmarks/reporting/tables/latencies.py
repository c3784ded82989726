"""The tables of timed calls. Terminal and page show the same table; a star marks an unstable median."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from statistics import median
from typing import Any

from benchmarks.measure.engines import BASELINE, COMPARED, ORT, RUNTIMES
from benchmarks.measure.interleaved_timing import STABLE_ROUNDS, STABLE_WIDTH
from benchmarks.measure.result_file import Row, Run
from benchmarks.measure.steadiness import SINGLE_IMAGES, spread, watched
from benchmarks.reporting.tables.table import (
    Cells,
    Table,
    find_row,
    group_rows,
    measured_rows,
    percent,
    ratio_text,
    times_faster,
)
from export.precision_table import PRECISIONS

LEAST_SHARE, LEAST_SHARE_OF_SHAPES = 0.01, 0.05  # of the time: rows with less are left out
REWRITTEN = ("ONNX Runtime, all rewrites", "OpenVINO, all rewrites")
# Field of a row -> column.
GPU_TIMES = {
    "device_p50_ms": "on device ms",
    "copies_p50_ms": "with copies ms",
    "overlapped_p50_ms": "overlapped ms",
}
GPU_SPEEDS = ("torch", "torch-compile", "onnx-folded", "onnx-cudagraph")  # runtimes of the short table of a GPU
GPU_STATE = {"sm_mhz": "clock MHz", "power_w": "power W", "temperature_c": "temperature C"}


def latency(run: Run) -> Table:
    """The calls of all batches."""
    rows = measured_rows(run)
    cells = zip(rows, _cells_of_rows(rows), strict=True)
    return Table(
        [
            {"images a call": f"{row['batch']:,}", **row_cells, **_gpu_state(row.get("gpu_state"))}
            for row, row_cells in cells
        ],
        3,
    )


def rewritten(run: Run) -> Table:
    """ViTBN and the CNN after all rewrites, a row for each engine and precision."""
    cells_by_engine: dict[str, dict[str, str]] = {}
    for row in measured_rows(run):
        if row["label"] in REWRITTEN and row["model"] in ("vitbn", "cnn"):
            engine = f"{row['label']}, {'float32' if row['precision'] == 'fp32' else row['precision']}"
            cells = cells_by_engine.setdefault(engine, {"ms a call": engine})
            images = "1 image" if row["batch"] == 1 else f"{row['batch']} images"
            cells[f"{row['model']}, {images}"] = _median(row)
    return Table([*cells_by_engine.values()])


def by_model(*runs: Run, runtimes: Sequence[str] = tuple(RUNTIMES)) -> Table:
    """A row for each batch size, runtime and precision, a column for each model.

    A cell has the milliseconds of a call, and the speed relative to PyTorch eager in float32. Of a model and precision
    the first run that has both counts.
    """
    table: dict[tuple[int, int, int], dict[str, str]] = {}
    run_of: dict[tuple[str, str], Run] = {}
    for run in runs:
        for row in measured_rows(run):
            counts = run_of.setdefault((row["model"], row["precision"]), run) is run
            if counts and row["runtime"] in runtimes:
                place = (-row["batch"], [*PRECISIONS].index(row["precision"]), [*RUNTIMES].index(row["runtime"]))
                precision = "" if row["precision"] == "fp32" else f", {row['precision']}"
                name = {"images a call": f"{row['batch']:,}", "runtime": f"{row['label']}{precision}"}
                number = partial(_number, decimals=2) if row["stable"] else rough
                cells = table.setdefault(place, {**name, **dict.fromkeys(COMPARED, "")})
                cells[row["model"]] = f"{_median(row)} ({number(row['ratio_to_torch']['ratio'])} x)"
    return Table([table[place] for place in sorted(table)])


def batch_table(rows: Sequence[Row], with_dim: bool = False) -> str:
    """The calls of one batch with a title, for a terminal. `with_dim`: the title names the networks' width."""
    if not rows:
        return "nothing measured"
    first = rows[0]
    machine = f"one call, threads: {first['threads']}, device: {first['device']}"
    dim = f"dim {first['dim']}, " if with_dim else ""
    title = f"{dim}batch {first['batch']}, {machine}, {first['rounds']} interleaved rounds"
    if slower := first.get("slower_rounds"):
        title += f", {slower} more left out: the machine was slower"
    if state := _gpu_state(first.get("gpu_state")):  # one for all rows, which take turns
        title += f"; GPU: {', '.join(f'{name} {value}' for name, value in state.items())}"
    return f"{title}\n{Table(_cells_of_rows(rows), 2).plain}"


def _cells_of_rows(rows: Sequence[Row]) -> list[Cells]:
    """The cells of each row. Some columns are shown only if a row has their figure."""
    same_precision = any(row["precision"] != "fp32" and row.get("ratio_to_same_precision") for row in rows)
    memory = any(row["peak_memory_mb"] is not None for row in rows)
    return [_cells(row, same_precision, memory) for row in rows]


def _cells(row: Row, same_precision: bool, memory: bool) -> Cells:
    """`same_precision`: with the ratio to PyTorch in the same precision. `memory`: with the peak of the memory."""
    ratio, same_precision_ratio = row["ratio_to_torch"], row.get("ratio_to_same_precision")
    precision = "" if row["precision"] == "fp32" else f", {row['precision']}"
    cells = {"model": row["model"], "runtime": f"{row['label']}{precision}", "depth": str(row["depth"] or "-")}
    cells |= {"first ms": _number(row["first_call_ms"], 1)}
    cells |= {"p50 ms": _median(row)}
    cells |= {f"p{percent} ms": _number(row[f"p{percent}_ms"], 2) for percent in (90, 99)}
    number = partial(_number, decimals=2) if row["stable"] else rough
    interval = f"{number(ratio['low'])}-{number(ratio['high'])}" if ratio else "-"
    cells |= {"images/s": _number(row["images_per_s"], 0), "x PyTorch": number(ratio["ratio"]) if ratio else "-"}
    cells |= {"95 % interval": interval}
    cells |= {"M MACs": _number(row["macs"] / 1e6, 2), "of GEMM %": _number(100 * row["gemm_share"], 1)}
    cells |= {"of copy %": _number(100 * row["bandwidth_share"], 1)}
    if same_precision:
        cells["x PyTorch, same precision"] = number(same_precision_ratio["ratio"]) if same_precision_ratio else "-"
    if memory:
        cells["peak MB"] = _number(row["peak_memory_mb"], 0)
    if row["device"] == "cuda":
        cells |= {column: _number(row[field], 3) for field, column in GPU_TIMES.items() if field in row}
    return cells


def _median(row: Row) -> str:
    return f"{row['p50_ms']:,.2f}{'' if row['stable'] else '*'}"


def _number(value: float | str | None, decimals: int) -> str:
    return value if isinstance(value, str) else "-" if value is None else f"{value:,.{decimals}f}"


def rough(value: float) -> str:
    """With two digits: an unstable median supports no more."""
    places = 1 - math.floor(math.log10(value))
    return f"{round(value, places):,.{max(0, places)}f}"


def _gpu_state(state: Row | None) -> Cells:
    """The ranges of the GPU's clock, power and temperature; empty on a machine without NVML."""
    if not state:
        return {}
    ranges = {column: f"{state[field][0]:,.0f} to {state[field][2]:,.0f}" for field, column in GPU_STATE.items()}
    return ranges | {"slowed turns, rejected": str(sum(state["rejected"].values()))}


def closing_lines(
    rows: Sequence[Row], missing: Sequence[Row], limits: Mapping[str, Any], caveat: str | None
) -> Iterator[str]:
    """The lines after the tables of `latency`: limits, fallbacks, other runtimes, and warnings.

    `missing`: rows of what was not measured. `caveat`: of a comparison at the published, different depths.
    """
    yield limits_line(limits)
    for row in rows:
        if row.get("fallback"):
            yield f"{row['model']}, {row['label']}, {row['precision']}: {row['fallback']}"
    used = {row["runtime"] for row in (*rows, *missing)}
    if others := [name for name in RUNTIMES if name not in used]:
        yield f"Other runtimes: --runtime all, or some of {', '.join(others)}"
    if caveat:
        yield from _published_comparison(rows)
        yield caveat
    yield from unstable_lines(rows)


def limits_line(limits: Mapping[str, Any]) -> str:
    gemm = f"{limits['gemm_gflops_per_s']:,.0f} GFLOP/s ({limits['gemm_library']})"
    return f"Limits of this machine: GEMM {gemm}, copy {limits['copy_gb_per_s']:.1f} GB/s"


def unstable_lines(rows: Sequence[Row]) -> Iterator[str]:
    if unstable := sum(not row["stable"] for row in rows):
        rule = f"within {100 * STABLE_WIDTH:.0f} % after {STABLE_ROUNDS} rounds and more"
        yield f"Warning: {unstable} of {len(rows)} rows (*) are not stable, {rule}: give more --seconds"


def _published_comparison(rows: Sequence[Row]) -> Iterator[str]:
    """For each batch, the speed of the BatchNorm networks of depth 1 relative to ViT of depth 6, as published."""
    for batch in dict.fromkeys(row["batch"] for row in rows):
        baseline = {"runtime": BASELINE, "precision": "fp32", "batch": batch}
        eager = {row["model"]: row for row in rows if baseline.items() <= row.items()}
        for model, row in eager.items():
            if "vit" in eager and model in ("vitbn", "vitbnffn"):
                ratio = times_faster(row, eager["vit"])
                interval = f"{ratio.ratio:.2f} ({ratio.low:.2f}-{ratio.high:.2f})"
                yield f"batch {batch}: {model} of depth 1 is {interval} times as fast as vit of depth 6, both eager"


def left_out(run: Run) -> str:
    """A line for each reason; empty if all was measured."""
    columns = ("network", "candidate", "model", "runtime", "engine", "precision", "batch", "in_flight")
    lines = []
    for (reason,), rows in group_rows((row for row in run.rows if "reason" in row), "reason").items():
        values = (dict.fromkeys(str(row[name]) for row in rows if row.get(name)) for name in columns)
        lines.append(f"- Not measured, {reason}: {'; '.join(', '.join(names) for names in values if names)}")
    return "\n".join(lines)


def sweep(run: Run) -> Table:
    """A row for each point of the axes, a column for each model and runtime."""
    cells_by_point: dict[tuple[str, int], dict[str, str]] = {}
    for row in measured_rows(run):
        value = row[row["axis"]]
        if value is not None:  # the CNN has neither depth nor width
            axis = {"batch": "images a call", "depth": "depth", "dim": "width"}[row["axis"]]
            cells = cells_by_point.setdefault((axis, value), {"axis": axis, "value": f"{value:,}"})
            cells[f"{row['model']}, {row['label']}, ms"] = f"{row['p50_ms']:,.2f}"
    return Table([*cells_by_point.values()])


def operators(run: Run) -> Table:
    """The operators that take most of the time, and their groups by shapes."""
    rows = [
        {"rewrites": row["rewrites"], "operator": row["operator"], "shapes": row.get("shapes", "all")}
        | {"count": str(row["count"]), "µs": f"{row['p50_us']:,.0f}", "share %": percent(row["share"], 1)}
        | {"GFLOP/s": "-" if row["gflops_per_s"] is None else f"{row['gflops_per_s']:,.0f}"}
        for row in run.rows
        if row["share"] >= (LEAST_SHARE_OF_SHAPES if "shapes" in row else LEAST_SHARE)
    ]
    return Table(rows, 3)


def engines(run: Run) -> Table:
    """Each engine relative to ONNX Runtime, and requests batched relative to requests one by one."""
    rows = []
    for row in run.rows:
        engine, _, size = row["name"].rpartition(", ")
        reference = f"{ORT}, {size}" if engine else row["name"].replace("together", "one by one")
        ratio = ratio_text(times_faster(row, find_row(run.rows, name=reference)))
        rows.append(
            {"engine, precision, images": row["name"], "p50 ms": f"{row['p50_ms']:.2f}"}
            | {"p90 ms": f"{row['p90_ms']:.2f}", f"times as fast as {ORT}, or one by one": ratio}
            | {"test accuracy %": "-" if row["accuracy"] is None else percent(row["accuracy"])}
        )
    return Table(rows)


def steady(run: Run) -> Table:
    """Medians and spreads of matrix products and of single images over the windows of a run."""
    rows = []
    for what, windows in watched(run.rows[0]).items():
        middle = median(windows)
        text = f"{middle:.3f} ms" if what == SINGLE_IMAGES else f"{middle:,.0f} GFLOP/s"
        rows.append({"what": what, "median": text, "spread": f"{spread(windows):.0%} between {len(windows)} windows"})
    return Table(rows)
