"""The second study, of depth: training and test images are distorted, as published.

The last epoch is also measured on plain test images.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from statistics import mean, median
from typing import TYPE_CHECKING, Any

from models.config import ModelConfig, ModelName
from models.plots.figures import NAMES, legend, row_of_panels, style, whole_numbers
from models.plots.results import Column, Result, footnote, percent, table
from models.studies.protocol import Extent, Scope, Study, name_of_part
from models.studies.ratios import compare
from models.studies.running import Run, Trained, seeded
from models.studies.series import ACCURACY, TRAINING_TIME, Quantity, spread_tables

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MODELS: tuple[ModelName, ...] = ("vit", "vitbnffn")
RATES = (0.005, 0.003)
DEPTHS = (2, 3, 4, 5, 6, 7)


def runs(scope: Scope, rates: Sequence[float], depths: Sequence[int]) -> list[Run]:
    return [
        Run(
            seeded(f"{model}-depth-{depth}-lr-{lr}", seed),
            ModelConfig(model=model, depth=depth),
            scope.options(lr, seed, augment="study", augment_test=True),
        )
        for lr in rates
        for depth in depths
        for seed in range(scope.seeds)
        for model in MODELS
    ]


def findings(trained: list[Trained], scope: Scope) -> dict[str, Any]:
    pairs = list(zip(trained[::2], trained[1::2], strict=True))
    groups = [pairs[first : first + scope.seeds] for first in range(0, len(pairs), scope.seeds)]
    derived = [_pair([vit for vit, _ in group], [other for _, other in group], scope) for group in groups]
    accuracies = [f"{model} {images} %" for model in MODELS for images in ("on distorted images", "on plain images")]
    columns = [
        Column("depth", 0),
        Column("learning rate"),
        *(Column(name, 2) for name in accuracies),
        Column("r_t (ViT / ViTBNFFN)", 2),
        Column("g_t %", 1),
        Column("r_v", 2),
        Column("g_v %", 1),
    ]
    rows = [
        [
            row["depth"],
            row["lr"],
            *(percent(row[model][kind]) for model in MODELS for kind in ("distorted_test_accuracy", "test_accuracy")),
            *(row["r_t"], percent(row["g_t"]), row["r_v"], percent(row["g_v"])),
        ]
        for row in derived
    ]
    title = "Accuracy after the last epoch; times of ViT over those of ViTBNFFN, r_t training, r_v test, g = 1 - 1/r"
    return {"derived": derived, "tables": [table(title, columns, rows), *spread_tables(trained)], "notes": []}


def _pair(vits: Sequence[Trained], others: Sequence[Trained], scope: Scope) -> dict[str, Any]:
    row: dict[str, Any] = {"depth": vits[0].run.config.depth, "lr": vits[0].run.options.lr}
    for trained in (vits, others):
        row[trained[0].run.config.model] = _over_seeds(trained, scope)
    return row | compare(vits, others)


def _over_seeds(trained: Sequence[Trained], scope: Scope) -> dict[str, float | None]:
    if not all(training.series for training in trained):
        return dict.fromkeys(("test_accuracy", "distorted_test_accuracy", "training_time_s", "test_time_s"))
    return {
        "test_accuracy": mean(_plain_accuracy(training, scope) for training in trained),
        "distorted_test_accuracy": mean(training.series[-1].test_accuracy for training in trained),
        "training_time_s": median(training.training_time_s for training in trained),
        "test_time_s": median(training.test_time_s for training in trained),
    }


def _plain_accuracy(training: Trained, scope: Scope) -> float:
    from models.checkpoint import load
    from models.evaluation import measure_accuracy, on_device

    network = load(training.checkpoint).model.to(scope.device)
    return measure_accuracy(network, *on_device(scope.dataset.test_images, scope.dataset.test_labels, scope.device))


def plots(result: Result) -> dict[str, Figure]:
    if len({row["depth"] for row in result["derived"]}) < 3:
        return {}
    return {
        "test-accuracy": _over_depth(
            result, replace(ACCURACY, key="distorted_test_accuracy"), "Test accuracy on distorted digits"
        ),
        "training-time": _over_depth(result, TRAINING_TIME, "Time to train one epoch of distorted digits"),
    }


def _over_depth(result: Result, quantity: Quantity, title: str) -> Figure:
    import numpy as np

    rates = list(dict.fromkeys(derived["lr"] for derived in result["derived"]))
    titles = [f"learning rate {lr}" for lr in rates]
    figure, row = row_of_panels(title, footnote(result), titles, "depth (blocks)", quantity.label)
    for axes, lr in zip(row, rates, strict=True):
        shown = [derived for derived in result["derived"] if derived["lr"] == lr]
        depths = [derived["depth"] for derived in shown]
        for model in MODELS:
            ends = np.array([derived[model][quantity.key] for derived in shown], float)  # None becomes a gap
            axes.plot(depths, quantity.factor * ends, **style(model), label=NAMES[model])
        whole_numbers(axes)
    quantity.scale(row[0])
    legend(figure, row[0])
    return figure


def study(rates: Sequence[float], depths: Sequence[int], all_images: bool) -> Study:
    return Study(
        name=name_of_part("depths", rates, RATES, all_images),
        question="On distorted digits, how deep can a network be trained with and without BatchNorm in its FFN?",
        epochs=10,
        test_batch=5000,
        quick=Extent(epochs=3, train_images=1500, test_images=1000),
        runs=partial(runs, rates=rates, depths=depths),
        findings=findings,
        plots=plots,
    )
