"""Tables of our networks: what the rewrites bring, and which network to choose."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePath

from benchmarks.measure.result_file import Row, Run
from benchmarks.measure.rewrite_speedups import ALL, BEST, EAGER, INT8, ONE_CALL, PLAIN
from benchmarks.reporting.tables.table import (
    Table,
    find_row,
    group_rows,
    milliseconds,
    percent,
    ratio_text,
    times_faster,
)
from export.intervals import Ratio

# Checkpoint -> what a reader needs, for the README.
CHOICE = {
    "cnn": "the most accurate",
    "vitbn-late-deep": "the most accurate transformer",
    "vitbn-late-64": "accuracy and speed",
    "vitbn-coarse": "speed",
}
GARMENTS = {
    "garments-cnn": "garments: the most accurate",
    "garments": "garments: speed",
}


def rewrites(run: Run) -> Table:
    """Each candidate's time in one call and in its best way, beside its plain export and PyTorch."""
    rows = []
    for best in (row for row in run.rows if row.get("kind") == BEST):
        candidate = {name: best[name] for name in ("at_depth", "model", "candidate")}
        one_call = find_row(run.rows, kind=ONE_CALL, **candidate)
        ratios = {
            f"x {other}": ratio_text(Ratio(**best["ratios"][other]))
            for other in (PLAIN, EAGER)
            if other in best["ratios"]
        }
        rows.append(
            {"depth": str(best["at_depth"]), "model": best["model"], "candidate": best["candidate"]}
            | {"M MACs": f"{best['macs'] / 1e6:.2f}", "one call ms": f"{one_call['p50_ms']:,.1f}"}
            | {"best ms": f"{best['p50_ms']:,.1f}", "images/s": f"{1000 * best['images'] / best['p50_ms']:,.0f}"}
            | ratios
            | {"best: images a call, calls at once x threads": best["way"]}
        )
    return Table(rows, 3)


# Title, candidate, and the candidate that it is compared with.
PAIRS = (
    ("ViTBN, all rewrites, its plain export = 1", ("vitbn", ALL), ("vitbn", PLAIN)),
    ("ViTBN, all rewrites, PyTorch eager = 1", ("vitbn", ALL), ("vitbn", EAGER)),
    ("ViTBN, all rewrites: int8, float32 = 1", ("vitbn", INT8), ("vitbn", ALL)),
    ("all rewrites: ViTBN, ViT = 1", ("vitbn", ALL), ("vit", ALL)),
    ("all rewrites: ViTBN, ViTBNFFN = 1", ("vitbn", ALL), ("vitbnffn", ALL)),
    ("all rewrites: ViTBN, CNN = 1", ("vitbn", ALL), ("cnn", ALL)),
    ("ViTBN folded, its plain export = 1", ("vitbn", "fold"), ("vitbn", PLAIN)),
    ("ViTBN folded, ViT plain = 1", ("vitbn", "fold"), ("vit", PLAIN)),
    ("unfolded: ViTBN, ViT = 1, plain exports", ("vitbn", PLAIN), ("vit", PLAIN)),
    ("unfolded: ViTBN, ViT = 1, PyTorch eager", ("vitbn", EAGER), ("vit", EAGER)),
)


def pairs(run: Run) -> Table:
    """How many times as fast the first of each pair is, a column for each depth and kind of call."""
    rows = []
    for title, *pair in PAIRS:
        cells = {"times as fast": title}
        for depth in dict.fromkeys(row["at_depth"] for row in run.rows):
            for kind in (BEST, ONE_CALL):
                row, than = (find_row(run.rows, at_depth=depth, kind=kind, model=m, candidate=c) for m, c in pair)
                cells[f"depth {depth}, {kind}"] = ratio_text(times_faster(row, than))
        rows.append(cells)
    return Table(rows)


def limit(run: Run) -> Table:
    """Each model's rate of floating-point operations beside that of a large matrix product on the same machine."""
    rows = []
    for (depth,), at_depth in group_rows(run.rows, "at_depth").items():
        rate, product = max((row["gflops_per_s"], row["name"]) for row in at_depth if "model" not in row)
        for model in ("vitbn", "vit", "vitbnffn", "cnn"):
            best = find_row(at_depth, kind=BEST, model=model, candidate=ALL)
            rows.append(
                {"depth": str(depth), "model": model, "GFLOP/s": f"{best['gflops_per_s']:,.0f}"}
                | {"of a large product's rate %": percent(best["gflops_per_s"] / rate, 0), "product": product}
            )
    return Table(rows, 2)


def worth(run: Run) -> Table:
    """The README's table of what the rewrites bring."""
    lines = (
        ("ViTBN, plain export", "vitbn", PLAIN),
        ("ViTBN, BatchNorm folded (`--fuse-bn`)", "vitbn", "fold"),
        ("ViTBN, all rewrites (`--rewrites all`)", "vitbn", ALL),
        ("ViTBN, all rewrites, int8 (`--precision int8`)", "vitbn", INT8),
        ("CNN (no depth)", "cnn", ALL),
    )
    rows = []
    for title, model, candidate in lines:
        cells = {"ms": title}
        for depth in (6, 1):
            for kind in (ONE_CALL, BEST):
                row = find_row(run.rows, at_depth=depth, model=model, candidate=candidate, kind=kind)
                cells[f"depth {depth}: {kind}"] = milliseconds(row["p50_ms"])
        rows.append(cells)
    return Table(rows)


def test_accuracy(row: Row) -> float:
    """The accuracy of the shipped checkpoint of that name, else the row's.

    The shipped weights may be newer than the measurement. They have the same speed, but another accuracy.
    """
    from models.catalog import SHIPPED, shipped
    from models.checkpoints.checkpoint import load

    folder, name = PurePath(row["checkpoint"]).parts[-2], PurePath(row["checkpoint"]).stem
    metrics = load(shipped(name)).metrics if (folder, name in SHIPPED) == ("pretrained", True) else row
    return float(metrics["test_accuracy"])


def frontier(run: Run) -> Table:
    """Each checkpoint's accuracy, work and speed, the fastest first."""
    rows = [
        {"checkpoint": row["checkpoint"], "model": row["model"], "depth": str(row["depth"] or "-")}
        | {"test accuracy %": percent(test_accuracy(row)), "M MACs": f"{row['macs'] / 1e6:.2f}"}
        | {"images/s": f"{row['images_per_s']:,.0f}", "best way": row["way"]}
        for row in reversed(run.rows)
    ]
    return Table(rows, 2)


def choice(digits: Run, garments: Run) -> Table:
    """The README's table of networks to choose; accuracies are those of the shipped checkpoints."""
    return Table([*_choice(digits, CHOICE), *_choice(garments, GARMENTS)], 2)


def _choice(run: Run, needs: Mapping[str, str]) -> list[dict[str, str]]:
    """`needs`: shipped checkpoint -> what a reader needs."""
    from models.catalog import shipped
    from models.checkpoints.checkpoint import load

    speeds = _speeds(run)
    rows = []
    for name, need in needs.items():
        checkpoint = load(shipped(name))
        config = checkpoint.config
        patches = f", patches of {config.patch_size[0]} pixels"
        blocks = f" ({config.depth} blocks{patches})" if config.is_transformer else ""
        accuracy = percent(checkpoint.metrics["test_accuracy"])
        rows.append(
            {"you need": need, "take": f"`--model {name}`{blocks}"}
            | {"test accuracy %": accuracy, "images/s": f"{speeds[name]:,.0f}"}
        )
    return rows


def billion(run: Run) -> Table:
    """How long a billion images take on the measured machine."""
    speeds, cores = _speeds(run), f"{run.machine['threads']} cores"
    rows = [
        {"network": f"`{name}`", f"images/s, {cores}": f"{speeds[name]:,.0f}"}
        | {f"hours for 1,000,000,000 images, {cores}": f"{1e9 / speeds[name] / 3600:.1f}"}
        for name in ("vitbn", "vitbn-late-64", "vitbn-coarse")
    ]
    return Table(rows)


def _speeds(run: Run) -> dict[str, float]:
    """Name of a checkpoint -> images a second."""
    return {PurePath(row["checkpoint"]).stem: row["images_per_s"] for row in run.rows}


def norms(run: Run) -> Table:
    """Each norm's accuracy and speed after all rewrites, the fastest first."""
    rows = []
    for row in reversed(run.rows):
        speedup = row["speedup_over_layer_norm"]
        rows.append(
            {"model": row["model"], "norms left": "none" if row["folds"] else "all"}
            | {"test accuracy %, seed 0": percent(row["test_accuracy"]), "M MACs": f"{row['macs'] / 1e6:.2f}"}
            | {"images/s": f"{row['images_per_s']:,.0f}"}
            | {"time of ViT over its own": f"{speedup:.2f}" if speedup else "-"}
        )
    return Table(rows, 2)
