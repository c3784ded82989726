"""Networks designed for their rewritten cost, and the published networks, trained with one recipe.

The last block computes only the CLS row, where a head costs almost nothing: so `wide` has many narrow heads, and in the
others the CLS token joins there (Touvron et al., CaiT, 2021).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from statistics import mean, stdev
from typing import TYPE_CHECKING, Any

from models.catalog import relative, shipped
from models.plots.figures import accuracy_axis, legend, row_of_panels, whole_numbers
from models.plots.results import Column, Result, footnote, table
from models.studies.protocol import Extent, Scope, Study
from models.studies.running import Run, Trained, seeded

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NETWORKS: dict[str, dict[str, Any]] = {
    "wide": {"depth": 1, "heads": 32, "dim_head": 16, "mlp_dim": 256},
    "late": {"depth": 2, "dim": 32, "heads": 8, "dim_head": 16, "late_cls": (32, 16)},
    "late-4": {"depth": 2, "dim": 32, "heads": 4, "dim_head": 16, "late_cls": (32, 16)},
    "late-64": {"depth": 2, "heads": 4, "mlp_dim": 256, "late_cls": (32, 16)},
    "late-deep": {"depth": 4, "heads": 4, "late_cls": (32, 16)},
}
"""Name -> fields of ModelConfig; width 64 and 8 heads of 64 unless they say otherwise."""
SIX_BLOCKS: dict[str, dict[str, Any]] = {
    "vit": {"model": "vit", "depth": 6},
    "vitbnffn": {"model": "vitbnffn", "depth": 6},
    "vitbn": {"model": "vitbn", "depth": 6, "late_cls": None},
    "vitbn-late": {"model": "vitbn", "depth": 6, "late_cls": (32, 16)},
}
"""The published networks, and ViTBN with a late CLS token."""
RECIPE: dict[str, Any] = {
    "batch_size": 128,
    "schedule": "one-cycle",
    "weight_decay": 0.05,
    "clip": 1.0,
    "augment": "elastic",
    "ema": 0.999,
}
RATE, SIX_BLOCKS_RATE = 0.003, 0.0015  # the second as the shipped networks of six blocks
HELD_OUT = 5000
DEEP = 3


def study(networks: Sequence[str], reinforced: str | None) -> Study:
    six = networks[0] in SIX_BLOCKS
    which = "the published networks of six blocks" if six else "networks designed for their rewritten cost"
    return Study(
        name="six-blocks" if six else "designed",
        question=f"How accurate are {which}, all trained with one recipe?",
        epochs=12 if six else 40,
        test_batch=100,
        quick=Extent(epochs=2, train_images=1200, test_images=500),
        runs=partial(runs, networks, reinforced),
        findings=findings,
        plots=plots,
    )


def runs(networks: Sequence[str], reinforced: str | None, scope: Scope) -> list[Run]:
    fields = RECIPE | {
        "hold_out": min(HELD_OUT, len(scope.dataset.train_labels) // 12),
        "teacher": str(relative(shipped("cnn"))),
        "reinforced": reinforced,
    }
    config = scope.dataset.model_config("vitbn", 1)
    rate = SIX_BLOCKS_RATE if networks[0] in SIX_BLOCKS else RATE
    return [
        Run(seeded(name, seed), replace(config, **own), scope.options(rate, seed, **fields))
        for name, own in ((name, (NETWORKS | SIX_BLOCKS)[name]) for name in networks)
        for seed in range(scope.seeds if own["depth"] <= DEEP else 1)
    ]


def findings(trained: list[Trained], scope: Scope) -> dict[str, Any]:
    derived = [
        {
            "label": training.run.label,
            "network": _network(training),
            "seed": training.run.options.seed,
            "checkpoint": training.checkpoint.name,
            "epochs": len(training.series),
            "held_out_accuracy": training.metrics.get("held_out_accuracy"),
            "test_accuracy": training.metrics.get("test_accuracy"),
        }
        for training in trained
    ]
    networks = dict.fromkeys(map(_network, trained))
    columns = [
        Column("network"),
        Column("seeds", 0),
        Column("epochs", 0),
        Column("held out, right %"),
        Column("test images, right %"),
        Column("mean", 2),
        Column("standard deviation, points", 2),
    ]
    rows = [_row(name, [row for row in derived if row["network"] == name]) for name in networks]
    held_out = trained[0].run.options.hold_out
    notes = [f"{held_out:,} training images are held out; the test images are looked at once, after the last epoch."]
    notes += [f"{row['label']} diverged." for row in derived if row["test_accuracy"] is None]
    return {"derived": derived, "tables": [table("Accuracy of each seed, in order", columns, rows)], "notes": notes}


def _network(training: Trained) -> str:
    config = asdict(training.run.config)
    networks = NETWORKS | SIX_BLOCKS
    return next(name for name, own in networks.items() if all(config[field] == it for field, it in own.items()))


def _row(name: str, runs: Sequence[dict[str, Any]]) -> list[object]:
    ends = [100 * run["test_accuracy"] for run in runs if run["test_accuracy"] is not None]
    return [
        name,
        len(runs),
        runs[0]["epochs"],
        _listed(runs, "held_out_accuracy"),
        _listed(runs, "test_accuracy"),
        mean(ends) if ends else None,
        stdev(ends) if len(ends) > 1 else None,
    ]


def _listed(runs: Sequence[dict[str, Any]], key: str) -> str:
    return ", ".join("diverged" if run[key] is None else f"{100 * run[key]:.2f}" for run in runs)


def plots(result: Result) -> dict[str, Figure]:
    names = {row["label"]: row["network"] for row in result["derived"]}
    panels = dict.fromkeys(names.values(), "")
    figure, row = row_of_panels(
        "Held-out accuracy, a line a seed", footnote(result), list(panels), "epoch", "held-out images right (%)"
    )
    for axes, network in zip(row, panels, strict=True):
        for run in result["runs"]:
            if names[run["label"]] == network:
                epochs = [epoch["epoch"] for epoch in run["series"]]
                right = [100 * epoch["test_accuracy"] for epoch in run["series"]]
                axes.plot(epochs, right, label=f"seed {run['options']['seed']}")
        whole_numbers(axes)
    accuracy_axis(row[0])
    legend(figure, row[0])
    return {"held-out-accuracy": figure}
