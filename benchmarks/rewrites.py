"""Command line: what the exact rewrites are worth, each contestant also at its own best micro-batch and threading.

Every contestant classifies the same images, once as one call and once in the way that suits it best, which a short
search finds. All of them take turns in one run; ratios are of medians of that run.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from benchmarks.ways import SEARCH_IMAGES, Way, best_way, cores, runner

if TYPE_CHECKING:
    from benchmarks.contestants import Program
    from export.equivalence import Images

# (model, runtime); the first row of each model is what the others are compared with.
ROWS = (
    ("vitbn", "torch"),
    ("vitbn", "torch-sdpa"),
    ("vitbn", "onnx"),
    ("vitbn", "onnx-folded"),
    ("vitbn", "onnx-optimized"),
    ("vitbnffn", "torch"),
    ("vitbnffn", "onnx-optimized"),
    ("vit", "torch"),
    ("vit", "onnx"),
    ("vit", "onnx-optimized"),
    ("cnn", "torch"),
    ("cnn", "onnx-optimized"),
)


@click.command()
@click.option("--depth", "depths", type=click.IntRange(1), multiple=True, default=(6, 1), show_default=True)
@click.option("--images", "count", type=click.IntRange(SEARCH_IMAGES), default=5000, show_default=True)
@click.option("--seconds", type=click.FloatRange(1), default=90, show_default=True, help="To measure each depth for.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write all samples here.")
def rewrites(depths: tuple[int, ...], count: int, seconds: float, json_path: Path | None) -> None:
    """Compare all rewrites with plain exports and PyTorch on the CPU, at equal depth."""
    from models.environment import describe

    results = []
    for depth in depths:
        rows = _measure(depth, count, seconds)
        results.append({"depth": depth, "rows": rows})
        _print(depth, rows)
    if json_path:
        from models.files import write_atomically

        result = {"environment": describe(cores(), "cpu"), "images": count, "results": results}
        write_atomically(json_path, json.dumps(result, indent=2).encode())
        click.echo(f"Wrote {json_path}")


def _measure(depth: int, count: int, seconds: float) -> list[dict[str, Any]]:
    """One JSON-ready row a contestant and way, and one a matrix product, all from one interleaved run."""
    from tqdm import tqdm

    from benchmarks.contestants import Unavailable, contestant, example_images, macs_per_image, program
    from benchmarks.roofline import gemms
    from benchmarks.timing import time_interleaved
    from models.config import ModelConfig

    rows: list[dict[str, Any]] = []
    runs: dict[str, Callable[[], object]] = {}
    for name, (run, flops) in gemms(cores()).items():
        runs[name] = run
        rows.append({"name": name, "flops": flops})
    for model, runtime in tqdm(ROWS, desc=f"depth {depth}: searching the best way", leave=False, disable=None):
        config = ModelConfig(model=model, depth=depth)
        images = example_images(config, count)
        try:
            contestant(config, runtime, images[:64], "cpu", cores())  # raises where the answers are wrong
            engine = program(config, runtime)
        except Unavailable as reason:
            click.echo(reason, err=True)
            continue
        macs, peak_mb = macs_per_image(config, runtime), _peak_memory_mb(engine, images)
        for kind, way in (("whole", Way(count, 1)), ("best", best_way(engine, images))):
            row = {"name": f"{model} {runtime} {kind}", "model": model, "runtime": runtime, "kind": kind}
            runs[f"{model} {runtime} {kind}"] = runner(engine, way, images)
            rows.append(row | {"way": str(way), "macs": macs, "flops": 2 * macs * count, "peak_one_call_mb": peak_mb})
    with tqdm(total=100, unit="%", desc=f"depth {depth}: measuring", leave=False, disable=None) as bar:
        measured = time_interleaved(runs, seconds, lambda share: bar.update(int(100 * share) - bar.n))
    for row in rows:
        durations = measured[row["name"]]
        row |= {f"p{percent}_ms": durations.percentile_ms(percent) for percent in (50, 90, 99)}
        row["gflops_per_s"] = row["flops"] / row["p50_ms"] / 1e6
        row["samples_ns"] = durations.samples_ns
    return rows


def _peak_memory_mb(engine: Program, images: Images) -> float:
    """Peak resident memory in MB of a fresh process that classifies all images in one call, libraries included."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(_classify_and_report_mb, engine, images).result()


def _classify_and_report_mb(engine: Program, images: Images) -> float:
    from benchmarks.contestants import start

    start(engine, "cpu", cores())(images)
    # Not getrusage: its maximum begins with the memory of the process that this one was forked from.
    status = Path("/proc/self/status").read_text()
    return int(re.findall(r"VmHWM:\s+(\d+) kB", status)[0]) * 1024 / 1e6


def _print(depth: int, rows: list[dict[str, Any]]) -> None:
    """A row a contestant: what it takes given all images at once and at its best, and the ratios to eager and plain."""
    from benchmarks.contestants import RUNTIMES
    from benchmarks.timing import table

    rate, product = max((row["gflops_per_s"], row["name"]) for row in rows if "model" not in row)
    by_name = {row["name"]: row for row in rows}
    cells = []
    for model, runtime in dict.fromkeys((row["model"], row["runtime"]) for row in rows if "model" in row):
        one_call, best = _one_call_and_best(by_name, model, runtime)
        eager_one_call, eager_best = _one_call_and_best(by_name, model, "torch")
        memory = f"{best['peak_one_call_mb']:,.0f}"
        times = (f"{one_call['p50_ms']:.1f}", memory, f"{best['p50_ms']:.1f}", best["way"])
        ratios = (eager_one_call["p50_ms"] / best["p50_ms"], eager_best["p50_ms"] / best["p50_ms"])
        shares = (*ratios, best["gflops_per_s"] / rate)
        cells.append((model, RUNTIMES[runtime], f"{best['macs'] / 1e6:.2f}", *times, *(f"{x:.2f}" for x in shares)))
    times_of = ("one call ms", "one call MB", "best ms", "best way")
    header = ("model", "runtime", "M MACs", *times_of, "x eager, one call", "x eager, best", "of GEMM")
    rounds = len(rows[0]["samples_ns"])
    click.echo(f"depth {depth}, medians of {rounds} interleaved rounds; GEMM: {rate:.0f} GFLOP/s, {product}")
    click.echo(table(header, cells))


def _one_call_and_best(by_name: dict[str, Any], model: str, runtime: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The row of one call with all images, and the quicker of it and of the best way that the search found."""
    one_call, found = (by_name[f"{model} {runtime} {kind}"] for kind in ("whole", "best"))
    return one_call, min(one_call, found, key=lambda row: float(row["p50_ms"]))


if __name__ == "__main__":
    rewrites()
