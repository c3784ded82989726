"""Command line: what the exact rewrites are worth, alone and together, each contestant at its own best.

Every contestant classifies the same images, once as one call and once in the way that suits it best, which a short
search finds. All of them take turns in one run; ratios are of medians of that run, with their bootstrap intervals.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from benchmarks.ways import Way, best_way, cores, runner
from models.config import ModelConfig, ModelName

if TYPE_CHECKING:
    from benchmarks.contestants import Program
    from benchmarks.timing import Durations
    from export.rewrites.pipeline import Rewrite

SEARCHED = 1280  # images of the search for the best way
ROUNDS = 7  # at least; an interval of fewer says little

EAGER, PLAIN, ALL = "PyTorch eager", "plain", "all"
INT8 = f"{ALL}, int8"
FUSED_ATTENTION = f"{EAGER}, fused attention"
ALONE = ("fold", "absorb", "CLS row")
TOGETHER = ("fold + absorb", "fold + CLS row", "fold + absorb + CLS row")

# model -> its contestants; those without "PyTorch" are ONNX files after the rewrites that the name says, in float32 but
# for the one that says int8.
CONTESTANTS: dict[ModelName, tuple[str, ...]] = {
    "vitbn": (EAGER, FUSED_ATTENTION, PLAIN, *ALONE, *TOGETHER, ALL, INT8),
    "vitbnffn": (EAGER, PLAIN, ALL),
    "vit": (EAGER, PLAIN, ALL),
    "cnn": (EAGER, PLAIN, ALL),
}

ONE_CALL, BEST = "one call", "best"


@click.command()
@click.option("--depth", "depths", type=click.IntRange(1), multiple=True, default=(6, 1), show_default=True)
@click.option("--images", "count", type=click.IntRange(SEARCHED), default=5000, show_default=True)
@click.option(
    "--seconds",
    type=click.FloatRange(1),
    default=90,
    show_default=True,
    help=f"To measure each depth for; {ROUNDS} rounds at least.",
)
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write all samples here.")
def rewrites(depths: tuple[int, ...], count: int, seconds: float, json_path: Path | None) -> None:
    """Compare each rewrite alone, several and all of them with plain exports and PyTorch on the CPU, at equal depth."""
    from export.equivalence import EquivalenceError
    from models.environment import describe
    from models.files import write_atomically

    results = []
    for depth in depths:
        try:
            rows = _measure(depth, count, seconds)
        except EquivalenceError as error:
            raise click.ClickException(str(error)) from error
        results.append({"depth": depth, "rows": rows})
        _print(depth, rows)
    if json_path:
        asked = "".join(f" --depth {depth}" for depth in depths) + f" --images {count} --seconds {seconds:g}"
        result = {
            "benchmark": "rewrites",
            "command": f"python benchmarks/rewrites.py{asked} --json FILE",
            "environment": describe(cores(), "cpu"),
            "images": count,
            "results": results,
        }
        write_atomically(json_path, json.dumps(result, indent=2).encode())
        click.echo(f"Wrote {json_path}")


def _measure(depth: int, count: int, seconds: float) -> list[dict[str, Any]]:
    """One JSON-ready row a contestant and way, and one a matrix product, all from one interleaved run."""
    from tqdm import tqdm

    from benchmarks.contestants import example_images
    from benchmarks.roofline import gemms
    from benchmarks.timing import time_interleaved

    rows: list[dict[str, Any]] = []
    runs: dict[str, Callable[[], object]] = {}
    for name, (run, flops) in gemms(cores()).items():
        runs[name] = run
        rows.append({"name": name, "flops": flops})
    pairs = [(ModelConfig(model=model, depth=depth), who) for model in CONTESTANTS for who in CONTESTANTS[model]]
    for config, who in tqdm(pairs, desc=f"depth {depth}: searching the best way", leave=False, disable=None):
        images = example_images(config, count)
        engine, macs = _program(config, who)
        for kind, way in ((ONE_CALL, Way(count, 1)), (BEST, best_way(engine, images[:SEARCHED]))):
            row = {"name": f"{config.model}, {who}, {kind}", "model": config.model, "contestant": who, "kind": kind}
            runs[row["name"]] = runner(engine, way, images)
            rows.append(row | {"way": str(way), "macs": macs, "flops": 2 * macs * count})
    with tqdm(total=100, unit="%", desc=f"depth {depth}: measuring", leave=False, disable=None) as bar:
        measured = time_interleaved(runs, seconds, lambda share: bar.update(int(100 * share) - bar.n), ROUNDS)
    return _rows(rows, measured)


def _program(config: ModelConfig, who: str) -> tuple[Program, int]:
    """The contestant, ready to start and, where it is rewritten, proved; and its multiply-accumulates of one image.

    Raises EquivalenceError for a file that does not answer as PyTorch does.
    """
    from benchmarks.contestants import baseline, check, example_images, program, start
    from export.graph import DEFAULT_OPSET, rewrite, to_onnx
    from models.macs import macs_per_image

    network = baseline(config)
    if who in (EAGER, FUSED_ATTENTION):
        return program(config, "torch" if who == EAGER else "torch-sdpa"), macs_per_image(network.model)
    served, _ = rewrite(baseline(config).model.double(), _rewrites(who), ())
    served = served.float()
    if who == INT8:
        data = program(config, "onnx-optimized", "int8")
    else:
        data = to_onnx(served, config, DEFAULT_OPSET).SerializeToString()
    images = example_images(config, 64)
    expected, found = (start(engine, "cpu", cores())(images) for engine in (network, data))
    check(f"{config.model}, {who}", "int8" if who == INT8 else "fp32", expected, found)
    return data, macs_per_image(served.model)


def _rewrites(who: str) -> tuple[Rewrite, ...]:
    """The functions that a contestant's name stands for."""
    from export.rewrites import pipeline
    from export.rewrites.absorb import absorb_attention
    from export.rewrites.prune import cls_only

    if who == PLAIN:
        return ()
    if who in (ALL, INT8):
        return pipeline.ALL
    of: dict[str, tuple[Rewrite, ...]] = {
        "fold": pipeline.FUSE,
        "absorb": (absorb_attention,),
        "CLS row": (cls_only,),
    }
    return tuple(one for name in who.split(" + ") for one in of[name])


def _rows(rows: list[dict[str, Any]], measured: dict[str, Durations]) -> list[dict[str, Any]]:
    """The rows with what was measured; each "best" is the quicker of the way found and of one call.

    `ratios` says how many times faster a row is than its model's eager and plain rows of the same kind.
    """
    from benchmarks.timing import ratio_with_interval

    durations = dict(measured)
    ours = [row for row in rows if "model" in row]
    for one_call, best in zip(ours[::2], ours[1::2], strict=True):
        if measured[one_call["name"]].percentile_ms(50) < measured[best["name"]].percentile_ms(50):
            durations[best["name"]] = measured[one_call["name"]]
            best["way"] = one_call["way"]
    for row in rows:
        own = durations[row["name"]]
        row |= {f"p{percent}_ms": own.percentile_ms(percent) for percent in (50, 90, 99)}
        row["gflops_per_s"] = row["flops"] / row["p50_ms"] / 1e6
        if "model" in row:
            row["ratios"] = {
                other: asdict(ratio_with_interval(durations[f"{row['model']}, {other}, {row['kind']}"], own))
                for other in (EAGER, PLAIN)
                if f"{row['model']}, {other}, {row['kind']}" in durations
            }
        row["samples_ns"] = own.samples_ns
    return rows


def _print(depth: int, rows: list[dict[str, Any]]) -> None:
    """A row a contestant: what it takes given all images at once and at its best, and how many times faster it is."""
    from benchmarks.timing import table

    rate, product = max((row["gflops_per_s"], row["name"]) for row in rows if "model" not in row)
    ours = [row for row in rows if "model" in row]
    cells = []
    for one_call, best in zip(ours[::2], ours[1::2], strict=True):
        times = (f"{one_call['p50_ms']:.1f}", f"{best['p50_ms']:.1f}", best["way"])
        ratios = [f"{r['ratio']:.2f} ({r['low']:.2f} to {r['high']:.2f})" for r in best["ratios"].values()]
        share = f"{best['gflops_per_s'] / rate:.2f}"
        cells.append((best["model"], best["contestant"], f"{best['macs'] / 1e6:.2f}", *times, *ratios, share))
    header = ("model", "contestant", "M MACs", "one call ms", "best ms", "best way", "x eager", "x plain", "of GEMM")
    rounds = len(rows[0]["samples_ns"])
    click.echo(f"depth {depth}, medians of {rounds} interleaved rounds; GEMM: {rate:.0f} GFLOP/s, {product}")
    click.echo(table(header, cells))


if __name__ == "__main__":
    rewrites()
