"""Accuracy over work: shipped checkpoints, and networks trained where none is shipped.

In: checkpoints. Out: a row a checkpoint, a table and a picture of them. `benchmarks/latency.py --preset frontier`
measures the rewritten networks' speed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from models.plots.figures import accuracy_over_cost
from models.studies import page
from models.studies.page import Result

if TYPE_CHECKING:
    from models.checkpoint import Checkpoint
    from models.config import ModelConfig
    from models.studies.running import Run


def finished(folder: Path, dataset: str) -> dict[ModelConfig, Checkpoint]:
    from models.checkpoint import load

    loaded = [load(path) for path in sorted(folder.glob("*.safetensors"))]
    of_dataset = [each for each in loaded if each.metrics.get("dataset") == dataset]
    return {each.config: each for each in of_dataset if "test_accuracy" in each.metrics}


def rows(
    folder: Path, result: Result, runs: Sequence[Run], there: Mapping[ModelConfig, Checkpoint]
) -> list[dict[str, Any]]:
    """In the order of `runs`, without those that diverged."""
    from models.checkpoint import load

    trained = {
        run["label"]: load(folder / "runs" / f"{run['label']}.safetensors")
        for run in result["runs"]
        if len(run["series"]) == run["options"]["epochs"]
    }
    networks = [there.get(run.config) or trained.get(run.label) for run in runs if not run.options.seed]
    return [_row(network) for network in networks if network]


def _row(network: Checkpoint) -> dict[str, Any]:
    from models.macs import macs_per_image

    return {
        "checkpoint": network.path.name,
        "model": network.config.model,
        "depth": network.config.depth if network.config.is_transformer else None,
        "macs": macs_per_image(network.model),
        "test_accuracy": network.metrics["test_accuracy"],
        "epochs": network.metrics["epochs"],
        "training_command": network.metrics.get("command"),
    }


def write(folder: Path, result: Result) -> list[Path]:
    columns = [
        *(("checkpoint", None), ("model", None), ("depth", 0), ("M MACs an image", 2)),
        *(("test accuracy %", 2), ("epochs", 0)),
    ]
    cells = [
        [row["checkpoint"], row["model"], row["depth"], row["macs"] / 1e6, 100 * row["test_accuracy"], row["epochs"]]
        for row in result["rows"]
    ]
    title = "Accuracy on the test images, and multiply-accumulates (MACs) as trained, before any rewrite"
    note = "The test images are looked at once, after the last epoch."
    points = [
        (row["model"], f"depth {row['depth']}" if row["depth"] else "", row["macs"] / 1e6, 100 * row["test_accuracy"])
        for row in result["rows"]
    ]
    axis = "multiply-accumulates an image as trained (millions)"
    figure = accuracy_over_cost("What accuracy costs in work", page.footnote(result), points, axis)
    return page.write(folder, result, [page.Table(title, columns, cells)], {"accuracy-macs": figure}, [note])
