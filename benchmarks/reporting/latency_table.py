from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks.measure.engines import BASELINE, RUNTIMES
from benchmarks.measure.tables import table
from benchmarks.measure.timing import STABLE_ROUNDS, STABLE_WIDTH, Durations, ratio_with_interval

HEADER = (
    *("model", "runtime", "depth", "first ms", "p50 ms", "p90 ms", "p99 ms", "images/s"),
    *("x PyTorch", "95 % interval", "M MACs", "of GEMM %", "of copy %"),
)
ON_A_GPU = {
    "device_p50_ms": "on device ms",
    "copies_p50_ms": "with copies ms",
    "overlapped_p50_ms": "overlapped ms",
    "floor_ms": "floor ms",
    "floor_by": "floor by",
}
Rows = Sequence[Mapping[str, Any]]


def batch_table(rows: Rows, with_dim: bool = False) -> str:
    """A star marks an unstable median."""
    if not rows:
        return "nothing measured"
    optional = {
        **({"peak_memory_mb": "peak MB"} if any(row["peak_memory_mb"] is not None for row in rows) else {}),
        **({key: title for key, title in ON_A_GPU.items() if key in rows[0]} if rows[0]["device"] == "cuda" else {}),
    }
    lower = any(row["precision"] != "fp32" and row.get("ratio_to_same_precision") for row in rows)
    header = (*HEADER, *(["x PyTorch, same precision"] if lower else []), *optional.values())
    cells = [
        (
            *_cells(row),
            *([_number((row.get("ratio_to_same_precision") or {}).get("ratio"), 2)] if lower else []),
            *(_number(row.get(key), 0 if key == "peak_memory_mb" else 3) for key in optional),
        )
        for row in rows
    ]
    first, sizes = rows[0], sorted({row["micro_batch"] for row in rows})
    called = "one call" if sizes == [first["batch"]] else f"{', '.join(map(str, sizes))} a call"
    where = f"{called}, threads: {first['threads']}, device: {first['device']}"
    dim = f"dim {first['dim']}, " if with_dim else ""
    return f"{dim}batch {first['batch']}, {where}, {first['rounds']} interleaved rounds\n{table(header, cells)}"


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    lower = "" if row["precision"] == "fp32" else f", {row['precision']}"
    ratio = row["ratio_to_torch"]
    return (
        row["model"],
        f"{row['label']}{lower}",
        str(row["depth"] or "-"),
        _number(row["first_call_ms"], 1),
        f"{_number(row['p50_ms'], 2)}{'' if row['stable'] else '*'}",
        *(_number(row[key], 2) for key in ("p90_ms", "p99_ms")),
        _number(row["images_per_s"], 0),
        _number(ratio["ratio"], 2) if ratio else "-",
        f"{ratio['low']:,.2f}-{ratio['high']:,.2f}" if ratio else "-",
        _number(row["macs"] / 1e6, 2),
        *(_number(100 * row[key], 1) for key in ("gemm_share", "bandwidth_share")),
    )


def _number(value: float | str | None, decimals: int) -> str:
    return value if isinstance(value, str) else "-" if value is None else f"{value:,.{decimals}f}"


def closing_lines(rows: Rows, missing: Rows, limits: Mapping[str, Any], caveat: str | None) -> Iterator[str]:
    yield limits_line(limits)
    if any(row["device"] == "cuda" for row in rows):
        yield (
            f"An empty launch takes {limits['launch_us']:.2f} us, as a node of a CUDA graph "
            f"{limits['graph_node_us']:.2f}; floor: the least time at these limits, a kernel per product and attention"
        )
    for row in rows:
        if row.get("fallback"):
            yield f"{row['model']}, {row['label']}, {row['precision']}: {row['fallback']}"
    used = {row["runtime"] for row in (*rows, *missing)}
    if others := [name for name in RUNTIMES if name not in used]:
        yield f"Other runtimes: --runtime all, or some of {', '.join(others)}"
    if caveat:
        yield from _published(rows)
        yield caveat
    yield from unstable_lines(rows)


def limits_line(limits: Mapping[str, Any]) -> str:
    gemm = f"{limits['gemm_gflops_per_s']:,.0f} GFLOP/s ({limits['gemm_library']})"
    return f"Limits measured first: GEMM {gemm}, copy {limits['copy_gb_per_s']:.1f} GB/s"


def unstable_lines(rows: Rows) -> Iterator[str]:
    if shaky := sum(not row["stable"] for row in rows):
        rule = f"within {100 * STABLE_WIDTH:.0f} % after {STABLE_ROUNDS} rounds and more"
        yield f"Warning: {shaky} of {len(rows)} rows (*) are not stable, {rule}: give more --seconds"


def _published(rows: Rows) -> Iterator[str]:
    for batch in dict.fromkeys(row["batch"] for row in rows):
        eager = {row["model"]: row for row in rows if row["batch"] == batch and _is_baseline(row)}
        for model, row in eager.items():
            if "vit" in eager and model in ("vitbn", "vitbnffn"):
                vit, other = (Durations(tuple(each["samples_ns"])) for each in (eager["vit"], row))
                ratio = ratio_with_interval(vit, other)
                interval = f"{ratio.ratio:.2f} ({ratio.low:.2f}-{ratio.high:.2f})"
                yield f"batch {batch}: {model} of depth 1 is {interval} times as fast as vit of depth 6, both eager"


def _is_baseline(row: Mapping[str, Any]) -> bool:
    return bool(row["runtime"] == BASELINE and row["precision"] == "fp32")
