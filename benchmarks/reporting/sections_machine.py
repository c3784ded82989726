"""The sections about runtimes and the machine."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from operator import itemgetter

from benchmarks.contest.rewritten import BEST, INT8
from benchmarks.contest.runtimes import ORT
from benchmarks.measure.timing import Ratio
from benchmarks.reporting import plots
from benchmarks.reporting.page import Block, Points, Table, Text
from benchmarks.reporting.sources import Result, Row, Section, Sources, cell, machine, times_faster
from models.plots.figures import NAMES

GROUPS = 8  # of equal nodes, in the table of a graph
GPU_STATE = {"sm_mhz": "clock MHz", "power_w": "power W", "temperature_c": "temperature °C"}
COUNTED = 0.01  # share of the time; operators below it are left out


def operators(sources: Sources) -> Section:
    short, blocks = [], []
    for result in sources.all("operators"):
        blocks += _operators_of(result)
        graph = result["graphs"][-1]
        if graph["rewrites"] != "all":  # the benchmark was killed before its second graph
            continue
        first, second = graph["operators"][:2]
        products = sum(row["share"] for row in graph["operators"] if row["gflops_per_s"] is not None)
        short.append(
            f"**The time of {result['model']}** with all rewrites, {result['batch']} images a call, goes to "
            f"{first['operator']} ({100 * first['share']:.0f} %) and {second['operator']} "
            f"({100 * second['share']:.0f} %); products and convolutions together take {100 * products:.0f} %."
        )
    what = "Shares are of the time in operators. Weights that the library packs beforehand show no shape."
    return Section("Where does the time go?", tuple(short), (Text(what), *blocks) if blocks else ())


def _operators_of(result: Result) -> list[Block]:
    title = f"{result['model']}, {result['batch']} images a call, {machine(result)}"
    blocks: list[Block] = [plots.operators(result)]
    for graph in result["graphs"]:
        blocks.append(
            Text(
                f"**{title}, rewrites: {graph['rewrites']}.** {graph['p50_ms']:.2f} ms a call, "
                f"{graph['profiled_p50_ms']:.2f} under the profiler, {graph['nodes_p50_ms']:.2f} in operators "
                "(medians)."
            )
        )
        by_operator = [row for row in graph["operators"] if row["share"] >= COUNTED]
        by_shape = [row for row in graph["groups"] if row["share"] >= COUNTED][:GROUPS]
        blocks += [_operator_table(by_operator, ("operator",)), _operator_table(by_shape, ("operator", "shapes"))]
    return blocks


def _operator_table(rows: list[Row], names: tuple[str, ...]) -> Table:
    cells = tuple((*(row[name] for name in names), *_operator_cells(row)) for row in rows)
    return Table((*names, "count", "µs", "share %", "GFLOP/s"), cells, len(names))


def _operator_cells(row: Row) -> tuple[str, ...]:
    rate = "-" if row["gflops_per_s"] is None else f"{row['gflops_per_s']:,.0f}"
    return (str(row["count"]), f"{row['p50_us']:,.0f}", f"{100 * row['share']:.1f}", rate)


def limit(sources: Sources) -> Section:
    question = "How far is the best row from the machine's limit?"
    result = sources.first("rewrites")
    if not result:
        return Section(question, (), ())
    cells, short = [], []
    for measured in result["results"]:
        rate, product = max((row["gflops_per_s"], row["name"]) for row in measured["rows"] if "model" not in row)
        in_float32 = [row for row in measured["rows"] if row.get("contestant") != INT8]  # like the product
        best = [row for row in in_float32 if row.get("kind") == BEST]
        for model in dict.fromkeys(row["model"] for row in best):
            row = min((row for row in best if row["model"] == model), key=lambda row: float(row["p50_ms"]))
            share, speed = row["gflops_per_s"] / rate, 1000 * result["images"] / row["p50_ms"]
            names = (NAMES[model], row["contestant"], str(measured["depth"]))
            speeds = (f"{speed:,.0f}", f"{speed / share:,.0f}")
            cells.append((*names, f"{row['gflops_per_s']:,.0f}", f"{100 * share:.0f}", *speeds))
            if model == "vitbn":
                short.append(
                    f"**The best row of ViTBN**, depth {measured['depth']}, reaches {100 * share:.0f} % of the rate of "
                    f"a large matrix product ({rate:,.0f} GFLOP/s, {product})."
                )
    header = ("model", "contestant", "depth", "GFLOP/s", "of the product's rate %", "images/s", "images/s at that rate")
    what = (
        "The limit is the float32 rate of a 2048³ product, measured in the same rounds. The rest is memory "
        "traffic, products too small for the cores, and operators that multiply nothing."
    )
    return Section(question, tuple(short), (Text(what), Table(header, tuple(cells), 3)))


def latency(sources: Sources) -> Section:
    blocks: list[Block] = []
    for result in sources.all("latency"):
        limits = result["limits"]
        peak = f"{limits['gemm_gflops_per_s']:,.0f} GFLOP/s ({limits['gemm_library']})"
        copy = f"{limits['copy_gb_per_s']:,.1f} GB/s of a copy"
        what = f"{machine(result)}; limits measured first: {peak}, {copy}; * marks an unstable median."
        blocks.append(Text(f"`{result['command']}`: {what} {result['caveat'] or ''}".strip()))
        blocks += [*plots.latency(result), *_latency_tables(result["rows"]), *_gpu_rows(result["rows"])]
        if result["missing"]:
            blocks += [Text("Not measured in that run:"), _missing(result["missing"])]
    for result in sources.all("sweep"):
        blocks += [Text(f"`{result['command']}`: {machine(result)}."), *plots.latency(result)]
    return Section("How long does one call take, in every runtime?", (), tuple(blocks))


def _gpu_rows(rows: list[Row]) -> list[Block]:
    cells = []
    for row in (row for row in rows if row.get("device_p50_ms") is not None):
        times = (f"{row[key]:,.3f}" for key in ("device_p50_ms", "p50_ms", "copies_p50_ms", "floor_ms"))
        names = (NAMES[row["model"]], row["label"], row["precision"], f"{row['batch']:,}")
        cells.append((*names, *times, *_gpu_state(row.get("gpu_state"))))
    header = ("model", "runtime", "precision", "batch", "on the device ms", "synchronised ms", "with copies ms")
    state = ("floor ms", *GPU_STATE.values(), "slowed turns, rejected")
    fallbacks = [f"{row['label']}, {row['precision']}: {row['fallback']}" for row in rows if row.get("fallback")]
    table: list[Block] = [Table((*header, *state), tuple(cells), 3)] if cells else []
    return [*table, *([Points(tuple(fallbacks))] if fallbacks else [])]


def _gpu_state(state: Row | None) -> tuple[str, ...]:
    if not state:  # a machine without NVML
        return ("-",) * (len(GPU_STATE) + 1)
    spans = (f"{low:,.0f} to {high:,.0f}" for low, _, high in (state[key] for key in GPU_STATE))
    return (*spans, str(sum(state["rejected"].values())))


def _missing(rows: list[Row]) -> Points:
    by_reason: dict[str, list[Row]] = {}
    for row in rows:
        by_reason.setdefault(row["reason"], []).append(row)
    return Points(tuple(f"{reason}: {_names(group)}" for reason, group in by_reason.items()))


def _names(rows: list[Row]) -> str:
    """Row by row, unless the rows are all combinations of the keys."""
    keys = ("model", "runtime", "precision")
    models, runtimes, precisions = (tuple(dict.fromkeys(row[key] for row in rows)) for key in keys)
    if 1 < len(rows) == len(models) * len(runtimes) * len(precisions):
        return f"{', '.join(models)} with {', '.join(runtimes)} in {', '.join(precisions)}"
    return ", ".join(" ".join(row[key] for key in keys) for row in rows)


def _latency_tables(rows: list[Row]) -> Iterator[Block]:
    """A table's rows compare with the same PyTorch eager."""
    for (model, depth, batch), alike in groupby(rows, itemgetter("model", "depth", "batch")):
        yield Text(f"**{NAMES[model]}{f', depth {depth}' if depth else ''}, batch {batch:,}**")
        yield _latency_table(list(alike))


def _latency_table(rows: list[Row]) -> Table:
    memory = ["peak MB"] if any(row["peak_memory_mb"] for row in rows) else []
    cells = []
    for row in rows:
        ratio, peak = row["ratio_to_torch"], row["peak_memory_mb"]
        peaks = (f"{peak:,.0f}" if peak else "-" for _ in memory)
        p50, *above = (f"{row[f'p{percent}_ms']:,.2f}" for percent in (50, 90, 99))
        times = (p50 if row["stable"] else f"{p50}*", *above, f"{row['images_per_s']:,.0f}")
        shares = (_percent(row["gemm_share"]), _percent(row["bandwidth_share"]))
        ratio_cell = cell(Ratio(**ratio)) if ratio else "-"
        cells.append((row["label"], row["precision"], *times, ratio_cell, *shares, *peaks))
    header = ("runtime", "precision", "p50 ms", "p90 ms", "p99 ms", "images/s", "x eager")
    return Table((*header, "of GEMM %", "of bandwidth %", *memory), tuple(cells), 2)


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.0f}"


def precision(sources: Sources) -> Section:
    blocks: list[Block] = []
    if result := sources.first("engines"):
        by_name = {row["name"]: row for row in result["rows"]}
        times = tuple(_engine_cells(row, by_name[_reference(row["name"])]) for row in result["rows"])
        what = f"The same file of {result['model']}, all rewrites, in process, {machine(result)}."
        blocks += [
            Text(what),
            Table(("engine, precision, images", "p50 ms", "p90 ms", f"times as fast as {ORT}, or one by one"), times),
        ]
    if result := sources.first("accuracy"):
        right = tuple(map(_accuracy_cells, result["rows"]))
        columns = ("model", "runtime", "test accuracy %", "same class as PyTorch %", "largest error of a logit")
        blocks += [Text(f"All {result['images']:,} test images of {result['dataset']}."), Table(columns, right, 2)]
    return Section("Which engine and precision, and how accurate are they?", (), tuple(blocks))


def _reference(name: str) -> str:
    """For a row of `engines.py`: the first engine at that size, or requests one by one."""
    engine, _, size = name.rpartition(", ")
    return f"{ORT}, {size}" if engine else name.replace("together", "one by one")


def _engine_cells(row: Row, reference: Row) -> tuple[str, ...]:
    times = (f"{row['p50_ms']:.2f}", f"{row['p90_ms']:.2f}")
    return (row["name"], *times, cell(times_faster(row, reference)))


def _accuracy_cells(row: Row) -> tuple[str, ...]:
    shares = (f"{100 * row[name]:.2f}" for name in ("accuracy", "agreement"))
    return (row["model"], row["runtime"], *shares, f"{row['max_abs_error']:.1e}")
