"""Test accuracy against multiply-accumulates: ViTBN by depth, and the CNN.

Uses the shipped checkpoints, or for a part of the images trains with their recipe. `benchmarks/frontier.py` measures
the rewritten networks' speed.
"""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from models.config import ModelConfig
from models.plots.figures import accuracy_over_cost
from models.plots.results import Column, Result, footnote, table
from models.studies.protocol import Extent, Scope, Study
from models.studies.running import Run, StudyError, Trained

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from models.checkpoint import Checkpoint
    from models.training import TrainingOptions

NETWORKS = (*(ModelConfig(model="vitbn", depth=depth) for depth in (1, 2, 3, 4, 6)), ModelConfig(model="cnn"))
RECIPE = "recipe.json"


def study(pretrained: Path) -> Study:
    return Study(
        name="frontier",
        question="Which network for which work? ViTBN by depth, and the CNN.",
        epochs=36,  # as most shipped checkpoints
        test_batch=100,
        quick=Extent(epochs=6, train_images=3000, test_images=1000),
        runs=partial(runs, pretrained),
        findings=partial(findings, pretrained),
        plots=plots,
    )


def runs(pretrained: Path, scope: Scope) -> list[Run]:
    there, options = shipped(pretrained, scope), recipe(pretrained / RECIPE, scope)
    return [Run(label(config), config, options) for config in NETWORKS if config not in there]


def label(config: ModelConfig) -> str:
    return f"{config.model}-depth-{config.depth}" if config.is_transformer else config.model


def recipe(path: Path, scope: Scope) -> TrainingOptions:
    from models.training import TrainingOptions

    try:
        values: dict[str, Any] = {"form": scope.form, **json.loads(path.read_bytes())}
        if (dataset := values.pop("dataset")) != scope.dataset.name:
            raise StudyError(f"{path}: expected a recipe for {scope.dataset.name}, found a recipe for {dataset}")
        options = TrainingOptions(epochs=scope.epochs, seed=0, device=scope.device, **values)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StudyError(f"{path}: expected a JSON object of training options, found {error!r}") from error
    return replace(options, hold_out=min(options.hold_out, len(scope.dataset.train_labels) // 12))


def shipped(pretrained: Path, scope: Scope) -> dict[ModelConfig, Checkpoint]:
    from models.checkpoint import load

    if scope.quick or not scope.all_images:
        return {}
    loaded = [load(path) for path in sorted(pretrained.glob("*.safetensors"))]
    of_dataset = [each for each in loaded if each.metrics.get("dataset") == scope.dataset.name]
    return {each.config: each for each in of_dataset if "test_accuracy" in each.metrics}


def findings(pretrained: Path, trained: list[Trained], scope: Scope) -> dict[str, Any]:
    from models.checkpoint import load
    from models.macs import macs_per_image

    there = shipped(pretrained, scope)
    here = {each.run.config: load(each.checkpoint) for each in trained if not each.diverged}
    derived = []
    for config in NETWORKS:
        if (checkpoint := there.get(config) or here.get(config)) is None:
            continue
        derived.append(
            {
                "model": config.model,
                "depth": config.depth if config.is_transformer else None,
                "macs": macs_per_image(checkpoint.model),
                "test_accuracy": checkpoint.metrics["test_accuracy"],
                "epochs": checkpoint.metrics["epochs"],
                "source": "shipped" if config in there else "trained here",
                "checkpoint": checkpoint.path.name,
                "training_command": checkpoint.metrics.get("command"),
            }
        )
    columns = [
        Column("model"),
        Column("depth", 0),
        Column("M MACs an image", 2),
        Column("test accuracy %", 2),
        Column("epochs", 0),
        Column("checkpoint"),
    ]
    rows = [
        [row["model"], row["depth"], row["macs"] / 1e6, 100 * row["test_accuracy"], row["epochs"], row["source"]]
        for row in derived
    ]
    title = "Accuracy on the test images, and multiply-accumulates (MACs) as trained, before any rewrite"
    held_out = recipe(pretrained / RECIPE, scope).hold_out
    note = f"{held_out:,} training images are held out; the test images are looked at once, after the last epoch."
    return {"derived": derived, "tables": [table(title, columns, rows)], "notes": [note]}


def plots(result: Result) -> dict[str, Figure]:
    points = [
        (row["model"], f"depth {row['depth']}" if row["depth"] else "", row["macs"] / 1e6, 100 * row["test_accuracy"])
        for row in result["derived"]
    ]
    title = "What accuracy costs in work"
    axis = "multiply-accumulates an image as trained (millions)"
    return {"accuracy-macs": accuracy_over_cost(title, footnote(result), points, axis)}
