"""The tables of the pages, as Markdown. In: the rows of a run. Out: a table of text, which pandas writes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import ceil
from pathlib import PurePath

from benchmarks.load.figures import engine_and_sharing, wire
from benchmarks.load.saturation import saturation
from benchmarks.measure.decoder_networks import PLAIN as AS_EXPORTED
from benchmarks.measure.decoder_networks import PRUNED
from benchmarks.measure.engines import ORT
from benchmarks.measure.foreign_candidates import OPENVINO_OURS, OPTIMISER, OURS
from benchmarks.measure.rewritten import ALL, BEST, EAGER, ONE_CALL, PLAIN
from benchmarks.measure.run import Row, Run
from benchmarks.measure.timing import Durations, Ratio, ratio_with_interval

Cells = Mapping[str, str]
"""Column -> text."""

COUNTED = 0.01  # share of the time; operators below it are left out
CHOICE = ("cnn", "vitbn-late-deep", "vitbn-late-64", "vitbn-wide")
RESERVE, CORES, WANTED = 0.6, 16, 100_000  # load, cores of a machine, images a second


def markdown(rows: Sequence[Cells], names: int = 1) -> str:
    """The first `names` columns are names, the others numbers."""
    import pandas

    frame = pandas.DataFrame(list(rows)).fillna("-").replace("", "-")
    sides = ["left" if i < names else "right" for i in range(len(frame.columns))]
    text: str = frame.to_markdown(index=False, disable_numparse=True, colalign=sides)
    return text


def measured(run: Run) -> list[Row]:
    return [row for row in run.rows if "reason" not in row]


def number(value: float) -> str:
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:,.0f}"


def cell(ratio: Ratio) -> str:
    if ratio.low == ratio.high == 1:
        return "1"
    return f"{number(ratio.ratio)} ({number(ratio.low)} to {number(ratio.high)})"


def times_faster(row: Row, than: Row) -> Ratio:
    """The samples must come from the same rounds."""
    return ratio_with_interval(Durations(tuple(than["samples_ns"])), Durations(tuple(row["samples_ns"])))


def milliseconds(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def percent(share: float, decimals: int = 2) -> str:
    return f"{100 * share:.{decimals}f}"


def find(rows: Sequence[Row], **wanted: object) -> Row:
    return next(row for row in rows if wanted.items() <= row.items())


def rewrites(run: Run) -> str:
    rows = []
    for best in (row for row in run.rows if row.get("kind") == BEST):
        alike = {name: best[name] for name in ("at_depth", "model", "contestant")}
        once = find(run.rows, kind=ONE_CALL, **alike)
        ratios = {f"x {other}": cell(Ratio(**best["ratios"][other])) for other in (PLAIN, EAGER)}
        rows.append(
            {"depth": str(best["at_depth"]), "model": best["model"], "contestant": best["contestant"]}
            | {"M MACs": f"{best['macs'] / 1e6:.2f}", "one call ms": f"{once['p50_ms']:,.1f}"}
            | {"best ms": f"{best['p50_ms']:,.1f}", "images/s": f"{1000 * best['images'] / best['p50_ms']:,.0f}"}
            | ratios
            | {"best: images a call, calls at once x threads": best["way"]}
        )
    return markdown(rows, 3)


PAIRS = (
    ("all rewrites: ViTBN, ViT = 1", ("vitbn", ALL), ("vit", ALL)),
    ("all rewrites: ViTBN, ViTBNFFN = 1", ("vitbn", ALL), ("vitbnffn", ALL)),
    ("all rewrites: ViTBN, CNN = 1", ("vitbn", ALL), ("cnn", ALL)),
    ("ViTBN folded, its plain export = 1", ("vitbn", "fold"), ("vitbn", PLAIN)),
    ("ViTBN folded, ViT plain = 1", ("vitbn", "fold"), ("vit", PLAIN)),
    ("unfolded: ViTBN, ViT = 1, plain exports", ("vitbn", PLAIN), ("vit", PLAIN)),
    ("unfolded: ViTBN, ViT = 1, PyTorch eager", ("vitbn", EAGER), ("vit", EAGER)),
)


def pairs(run: Run) -> str:
    rows = []
    for name, *both in PAIRS:
        cells = {"times as fast": name}
        for depth in dict.fromkeys(row["at_depth"] for row in run.rows):
            for kind in (BEST, ONE_CALL):
                row, than = (find(run.rows, at_depth=depth, kind=kind, model=m, contestant=c) for m, c in both)
                cells[f"depth {depth}, {kind}"] = cell(times_faster(row, than))
        rows.append(cells)
    return markdown(rows)


def limit(run: Run) -> str:
    rows = []
    for depth in dict.fromkeys(row["at_depth"] for row in run.rows):
        at_depth = [row for row in run.rows if row["at_depth"] == depth]
        rate, product = max((row["gflops_per_s"], row["name"]) for row in at_depth if "model" not in row)
        for model in ("vitbn", "vit", "vitbnffn", "cnn"):
            best = find(at_depth, kind=BEST, model=model, contestant=ALL)
            rows.append(
                {"depth": str(depth), "model": model, "GFLOP/s": f"{best['gflops_per_s']:,.0f}"}
                | {"of a large product's rate %": percent(best["gflops_per_s"] / rate, 0), "product": product}
            )
    return markdown(rows, 2)


def worth(run: Run) -> str:
    """The README's."""
    lines = (
        ("ViTBN, plain export", "vitbn", PLAIN),
        ("ViTBN, BatchNorm folded (`--fuse-bn`)", "vitbn", "fold"),
        ("ViTBN, all rewrites (`--rewrites all`)", "vitbn", ALL),
        ("ViTBN, all rewrites, int8 (`--precision int8`)", "vitbn", f"{ALL}, int8"),
        ("CNN (no depth)", "cnn", ALL),
    )
    rows = []
    for title, model, contestant in lines:
        cells = {"ms": title}
        for depth in (6, 1):
            for kind in (ONE_CALL, BEST):
                row = find(run.rows, at_depth=depth, model=model, contestant=contestant, kind=kind)
                cells[f"depth {depth}: {kind}"] = milliseconds(row["p50_ms"])
        rows.append(cells)
    return markdown(rows)


def frontier(run: Run) -> str:
    rows = [
        {"checkpoint": row["checkpoint"], "model": row["model"], "depth": str(row["depth"] or "-")}
        | {"test accuracy %": percent(row["test_accuracy"]), "M MACs": f"{row['macs'] / 1e6:.2f}"}
        | {"images/s": f"{row['images_per_s']:,.0f}", "best way": row["way"]}
        for row in reversed(run.rows)
    ]
    return markdown(rows, 2)


def choice(run: Run) -> str:
    """The README's; accuracies are those of the shipped checkpoints."""
    from models.catalog import shipped
    from models.checkpoint import load

    speeds = {PurePath(row["checkpoint"]).stem: row["images_per_s"] for row in run.rows}
    needs = ("the most accurate", "the most accurate transformer", "accuracy and speed", "speed")
    rows = []
    for need, name in zip(needs, CHOICE, strict=True):
        checkpoint = load(shipped(name))
        config = checkpoint.config
        heads = f", {config.heads} heads" if config.depth == 1 else ""
        blocks = f" ({config.depth} block{'s' * (config.depth > 1)}{heads})" if config.is_transformer else ""
        accuracy = percent(checkpoint.metrics["test_accuracy"])
        rows.append(
            {"you need": need, "take": f"`--model {name}`{blocks}"}
            | {"test accuracy %": accuracy, "images/s": f"{speeds[name]:,.0f}"}
        )
    return markdown(rows, 2)


def billion(run: Run) -> str:
    speeds = {PurePath(row["checkpoint"]).stem: row["images_per_s"] for row in run.rows}
    rows = [
        {"network": f"`{name}`", f"images/s, {run.machine['threads']} cores": f"{speeds[name]:,.0f}"}
        | {f"hours for 1,000,000,000 images, {run.machine['threads']} cores": f"{1e9 / speeds[name] / 3600:.1f}"}
        for name in ("vitbn", "vitbn-late-64", "vitbn-tiny")
    ]
    return markdown(rows)


def norms(run: Run) -> str:
    rows = [
        {"model": row["model"], "norms left": "none" if row["folds"] else "all"}
        | {"test accuracy %, seed 0": percent(row["test_accuracy"]), "M MACs": f"{row['macs'] / 1e6:.2f}"}
        | {
            "images/s": f"{row['images_per_s']:,.0f}",
            "time of ViT over its own": f"{row['speedup_over_layer_norm']:.2f}",
        }
        for row in reversed(run.rows)
    ]
    return markdown(rows, 2)


SPEEDS = (
    *(("x plain", batch, OURS) for batch in (1, 8)),
    *(("optimiser", batch, OPTIMISER) for batch in (1, 8)),
    *(("in OpenVINO", batch, OPENVINO_OURS) for batch in (1, 8)),
)


def foreign(run: Run, intervals: bool = True) -> str:
    rows = []
    for name in dict.fromkeys(row["network"] for row in run.rows if "macs" in row):
        own = [row for row in run.rows if row["network"] == name]
        first = own[0]
        left = [*first["macs_after"].values()][-1]
        cells = {"network": first["title"], "`--network`": f"`{name}`", "M MACs": f"{first['macs'] / 1e6:,.1f}"}
        cells |= {"rewritten": f"{left / 1e6:,.1f}", "saved %": percent(1 - left / first["macs"], 1)}
        cells["BatchNorms"] = f"{first['norms'][0]} to {first['norms'][1]}" if first["norms"][0] else "-"
        for title, batch, contestant in SPEEDS:
            row = next((r for r in own if (r["batch"], r["contestant"]) == (batch, contestant)), {})
            ratio = Ratio(**row["times_as_fast"]) if row.get("times_as_fast") else None
            cells[f"{title}, {batch}"] = "-" if not ratio else cell(ratio) if intervals else number(ratio.ratio)
        rows.append(cells)
    return markdown(rows, 2)


ON_A_GPU = {
    "device_p50_ms": "on the device ms",
    "copies_p50_ms": "with copies ms",
    "overlapped_p50_ms": "copies overlapped ms",
    "floor_ms": "floor ms",
    "floor_by": "floor by",
}
GPU_STATE = {"sm_mhz": "clock MHz", "power_w": "power W", "temperature_c": "temperature C"}


def foreign_speeds(run: Run) -> str:
    """Of docs/rewrite.md, without intervals."""
    return foreign(run, intervals=False)


def decoders(run: Run, intervals: bool = True) -> str:
    """Times as fast as the file as exported; of decoding the ratio alone."""
    rows = []
    for name, kind in dict.fromkeys((row["network"], row["kind"]) for row in measured(run)):
        own = [row for row in measured(run) if (row["network"], row["kind"]) == (name, kind)]
        plain = find(own, contestant=AS_EXPORTED)
        left = find(own, contestant=OURS)["macs"]
        cells = {"network": plain["title"], "time of": kind, "M MACs": f"{plain['macs'] / 1e6:,.0f}"}
        cells |= {"rewritten": f"{left / 1e6:,.0f}"}
        for threads in dict.fromkeys(row["threads"] for row in own):
            here = [row for row in own if row["threads"] == threads]
            cells[f"ms, {threads}"] = milliseconds(find(here, contestant=AS_EXPORTED)["p50_ms"])
            for contestant in (OURS, PRUNED):
                row = next((row for row in here if row["contestant"] == contestant), None)
                ratio = Ratio(**row["ratios"][AS_EXPORTED]) if row else None
                shown = "-" if not ratio else cell(ratio) if intervals else number(ratio.ratio)
                cells[f"x {contestant}, {threads}"] = shown
        rows.append(cells)
    return markdown(rows, 2)


def decoder_speeds(run: Run) -> str:
    """Of docs/rewrite.md, without intervals."""
    return decoders(run, intervals=False)


def latency(run: Run) -> str:
    return markdown([_latency(row) for row in measured(run)], 5)


def _latency(row: Row) -> Cells:
    ratio = row["ratio_to_torch"]
    cells = {"model": row["model"], "depth": str(row["depth"] or "-"), "images a call": f"{row['batch']:,}"}
    cells |= {"runtime": row["label"], "precision": row["precision"]}
    cells |= {"p50 ms": f"{row['p50_ms']:,.2f}{'' if row['stable'] else '*'}"}
    cells |= {f"p{percent} ms": f"{row[f'p{percent}_ms']:,.2f}" for percent in (90, 99)}
    cells |= {"images/s": f"{row['images_per_s']:,.0f}", "x eager": cell(Ratio(**ratio)) if ratio else "-"}
    cells |= {"of GEMM %": percent(row["gemm_share"], 0), "of copy %": percent(row["bandwidth_share"], 0)}
    if row["peak_memory_mb"]:
        cells["peak MB"] = f"{row['peak_memory_mb']:,.0f}"
    if row["device"] == "cuda":
        on_a_gpu = {title: row[name] for name, title in ON_A_GPU.items() if row.get(name) is not None}
        cells |= {title: f"{value:,.3f}" if isinstance(value, float) else value for title, value in on_a_gpu.items()}
        cells |= _gpu_state(row.get("gpu_state"))
    return cells


def _gpu_state(state: Row | None) -> Cells:
    if not state:  # a machine without NVML
        return {}
    spans = {title: f"{state[name][0]:,.0f} to {state[name][2]:,.0f}" for name, title in GPU_STATE.items()}
    return spans | {"slowed turns, rejected": str(sum(state["rejected"].values()))}


def left_out(run: Run) -> str:
    """A line for each reason; empty if all was measured."""
    columns = ("network", "contestant", "model", "runtime", "engine", "precision", "batch", "in_flight")
    by_reason: dict[str, list[Row]] = {}
    for row in (row for row in run.rows if "reason" in row):
        by_reason.setdefault(row["reason"], []).append(row)
    lines = []
    for reason, rows in by_reason.items():
        named = (dict.fromkeys(str(row[name]) for row in rows if row.get(name)) for name in columns)
        lines.append(f"- Not measured, {reason}: {'; '.join(', '.join(each) for each in named if each)}")
    return "\n".join(lines)


def sweep(run: Run) -> str:
    rows: dict[tuple[str, int], dict[str, str]] = {}
    for row in measured(run):
        value = row[row["axis"]]
        if value is not None:
            axis = {"batch": "images a call", "depth": "depth", "dim": "width"}[row["axis"]]
            cells = rows.setdefault((axis, value), {"axis": axis, "value": f"{value:,}"})
            cells[f"{row['model']}, {row['label']}, ms"] = f"{row['p50_ms']:,.2f}"
    return markdown([*rows.values()], 1)


def operators(run: Run) -> str:
    rows = [
        {"rewrites": row["rewrites"], "operator": row["operator"], "shapes": row.get("shapes", "all")}
        | {"count": str(row["count"]), "µs": f"{row['p50_us']:,.0f}", "share %": percent(row["share"], 1)}
        | {"GFLOP/s": "-" if row["gflops_per_s"] is None else f"{row['gflops_per_s']:,.0f}"}
        for row in run.rows
        if row["share"] >= (COUNTED if "shapes" not in row else 5 * COUNTED)
    ]
    return markdown(rows, 3)


def engines(run: Run) -> str:
    rows = []
    for row in run.rows:
        engine, _, size = row["name"].rpartition(", ")
        reference = f"{ORT}, {size}" if engine else row["name"].replace("together", "one by one")
        ratio = cell(times_faster(row, find(run.rows, name=reference)))
        rows.append(
            {"engine, precision, images": row["name"], "p50 ms": f"{row['p50_ms']:.2f}"}
            | {"p90 ms": f"{row['p90_ms']:.2f}", f"times as fast as {ORT}, or one by one": ratio}
            | {"test accuracy %": "-" if row["accuracy"] is None else percent(row["accuracy"])}
        )
    return markdown(rows)


def accuracy(run: Run) -> str:
    rows = [
        {"model": row["model"], "runtime": row["runtime"], "test accuracy %": percent(row["accuracy"])}
        | {
            "same class as PyTorch %": percent(row["agreement"]),
            "largest error of a logit": f"{row['max_abs_error']:.1e}",
        }
        for row in run.rows
    ]
    return markdown(rows, 2)


def pens(run: Run) -> str:
    every: dict[str, dict[str, str]] = {}
    for row in run.rows:
        cells = every.setdefault(row["model"], {"right, %": f"`{row['model']}`"})
        cells[row["condition"]] = percent(row["accuracy"])
    return markdown([*every.values()])


def conditions(run: Run) -> str:
    sources = [name for name in run.rows[-1] if name not in ("condition", "images")]
    rows = [
        {"right, %": row["condition"]} | {name: f"{row[name]:.0f}" if name in row else "" for name in sources}
        for row in run.rows
    ]
    return markdown(rows)


def added(run: Run) -> str:
    timed = [row for row in run.rows if "transport" in row]
    rows = []
    for row in timed:
        alone = find(timed, transport="in process", images_a_call=row["images_a_call"])
        cells = {"transport": row["transport"], "images a call": f"{row['images_a_call']:,}"}
        cells |= {f"p{percent} ms": f"{row[f'p{percent}_ms']:,.2f}" for percent in (50, 99)}
        cells |= {"images/s": f"{row['images_per_s']:,.0f}", "in process = 1": cell(times_faster(row, alone))}
        cells |= {"added ms": f"{row['added_ms']:,.2f}"}
        rows.append(cells | {"client's part ms": f"{row['client_ms']:.2f}" if "client_ms" in row else "-"})
    return markdown(rows)


def throughput(run: Run) -> str:
    unit, count = ("core", run.machine["threads"]) if run.machine["device"] == "cpu" else ("GPU", 1)
    rows = []
    for row in measured(run):
        cells = {"model": row["model"], "protocol": wire(row), "instances x threads": engine_and_sharing(row)}
        cells |= {"load": f"{row['in_flight']} in flight" if row["in_flight"] else f"{row['rate']:,.0f} a second"}
        cells |= {"images a request": str(row["batch"]), "images/s": f"{row['images_per_s']:,.0f}"}
        cells |= {f"{unit}-seconds a million images": number(count * 1e6 / row["images_per_s"])}
        cells |= {f"p{percent} ms": f"{row[f'p{percent}_ms']:,.2f}" for percent in (50, 90, 95, 99)}
        cells |= {f"server: {name} ms": f"{row[f'server_{name}_ms']:,.2f}" for name in ("queue", "compute")}
        ratios = [
            served / alone
            for served, alone in zip(row["rounds_images_per_s"], row["rounds_in_process_images_per_s"], strict=False)
        ]
        span = f" ({min(ratios):.2f} to {max(ratios):.2f})" if ratios else ""
        rows.append(cells | {"in process = 1": f"{row['of_in_process']:.2f}{span}" if row["of_in_process"] else "-"})
    return markdown(rows, 4)


def saturated(run: Run) -> str:
    from benchmarks.reporting.throughput_report import said

    lines = [
        f"- {point['model']}, {engine_and_sharing(point)}, {wire(point)}, {point['batch']} a request: {said(point)}"
        for point in saturation(run.rows)
        if not point["beyond"]
    ]
    return "\n".join(lines)


def machines(run: Run) -> str:
    """Of the better sharing of the cores."""
    threads, rows = run.machine["threads"], []
    for model in ("vitbn", "vitbn-tiny", "cnn"):
        for batch in (1, 64):
            load = {"model": model, "batch": batch, "in_flight": 8}
            rate = max(row["images_per_s"] for row in measured(run) if load.items() <= row.items())
            count = ceil(WANTED / (CORES * rate / threads * RESERVE)) + 1
            cells = {"network": f"`{model}`", "images a request": str(batch)}
            cells |= {f"images/s, {threads} cores": f"{rate:,.0f}", "images/s a core": f"{rate / threads:,.0f}"}
            rows.append(cells | {f"machines of {CORES} cores": str(count)})
    return markdown(rows)


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


def drills(run: Run) -> str:
    """Of docs/results.md."""
    rows = []
    for row in (row for row in run.rows if row["scenario"] in DRILLS):
        cells = {"scenario": DRILLS[row["scenario"]], "sent": f"{row['sent']:,}", "failed": str(row["failed"])}
        cells |= {"wrong": str(row["wrong"]), "worst ms": f"{row['worst_ms']:,.0f}"}
        rows.append(cells | {"right again after s": f"{row['recovery_s']:.1f}" if row.get("recovery_s") else "-"})
    return markdown(rows)


def counts(run: Run) -> str:
    """Rows of plain figures as they are."""
    rows = []
    for row in run.rows:
        rows.append({name.replace("_", " "): _shown(value) for name, value in row.items() if _is_plain(value)})
    return markdown(rows)


def _is_plain(value: object) -> bool:
    return value is not None and not isinstance(value, (list, dict))


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.2f}" if 0 < abs(value) < 10 else f"{value:,.1f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


TABLES: Mapping[str, Callable[[Run], str]] = {
    each.__name__: each
    for each in (
        *(
            rewrites,
            pairs,
            limit,
            worth,
            frontier,
            choice,
            billion,
            norms,
            foreign,
            foreign_speeds,
            decoders,
            decoder_speeds,
            latency,
            left_out,
            sweep,
        ),
        *(operators, engines, accuracy, pens, conditions, added, throughput, saturated, machines, drills, counts),
    )
}
