"""Accuracy over work: shipped checkpoints, and networks trained where none is shipped.

In: checkpoints. Out: a row a checkpoint, a table and a picture of them. `benchmarks/latency.py --preset frontier`
measures the rewritten networks' speed.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from models.plots import results
from models.plots.figures import accuracy_over_cost
from models.plots.results import Column, Result, footnote, table

if TYPE_CHECKING:
    from models.checkpoint import Checkpoint
    from models.config import ModelConfig
    from models.studies.running import Run, Trained


def finished(folder: Path, dataset: str) -> dict[ModelConfig, Checkpoint]:
    from models.checkpoint import load

    loaded = [load(path) for path in sorted(folder.glob("*.safetensors"))]
    of_dataset = [each for each in loaded if each.metrics.get("dataset") == dataset]
    return {each.config: each for each in of_dataset if "test_accuracy" in each.metrics}


def rows(runs: Sequence[Run], there: dict[ModelConfig, Checkpoint], trained: Sequence[Trained]) -> list[dict[str, Any]]:
    """In the order of `runs`, without those that diverged."""
    from models.checkpoint import load
    from models.macs import macs_per_image

    every = there | {each.run.config: load(each.checkpoint) for each in trained if not each.diverged}
    networks = [every[run.config] for run in runs if run.config in every and not run.options.seed]

    return [
        {
            "checkpoint": network.path.name,
            "model": network.config.model,
            "depth": network.config.depth if network.config.is_transformer else None,
            "macs": macs_per_image(network.model),
            "test_accuracy": network.metrics["test_accuracy"],
            "epochs": network.metrics["epochs"],
            "training_command": network.metrics.get("command"),
        }
        for network in networks
    ]


def write(folder: Path, result: Result) -> list[Path]:
    columns = [
        *(Column("checkpoint"), Column("model"), Column("depth", 0), Column("M MACs an image", 2)),
        *(Column("test accuracy %", 2), Column("epochs", 0)),
    ]
    rows = result["rows"]
    cells = [
        [row["checkpoint"], row["model"], row["depth"], row["macs"] / 1e6, 100 * row["test_accuracy"], row["epochs"]]
        for row in rows
    ]
    title = "Accuracy on the test images, and multiply-accumulates (MACs) as trained, before any rewrite"
    note = "The test images are looked at once, after the last epoch."
    points = [
        (row["model"], f"depth {row['depth']}" if row["depth"] else "", row["macs"] / 1e6, 100 * row["test_accuracy"])
        for row in rows
    ]
    axis = "multiply-accumulates an image as trained (millions)"
    figure = accuracy_over_cost("What accuracy costs in work", footnote(result), points, axis)
    page = {"tables": [table(title, columns, cells)], "notes": [note]}
    return results.write(folder, result, page, {"accuracy-macs": figure})
