"""One network with LayerNorm, BatchNorm, and norms between them.

Same depth, images, epochs and seed for all, at a usual learning rate and at a high one, which shows stability.
`benchmarks/norms.py` measures the speed of the rewritten networks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from models.config import ModelName
from models.plots.figures import NAMES, legend, row_of_panels, style
from models.plots.results import Column, Result, footnote, table
from models.studies.protocol import Extent, Scope, Study
from models.studies.running import Run, Trained
from models.studies.series import ACCURACY, by_epoch

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DEPTH = 6
USUAL, HIGH = 0.001, 0.01
FOLDING: tuple[ModelName, ...] = ("vitbn", "vit-repbn", "vit-prepbn", "vit-un", "vit-dfn")
BY_TOKEN: tuple[ModelName, ...] = ("vit", "vit-dtn")  # statistics of each image
DATASETS = ("mnist", "fashion-mnist", "cifar10")


def runs(scope: Scope) -> list[Run]:
    """Every norm at both learning rates."""
    from models.training import TrainingOptions

    return [
        Run(
            f"{model}-lr-{lr}",
            scope.dataset.model_config(model, DEPTH),
            TrainingOptions(epochs=scope.epochs, batch_size=100, lr=lr, seed=0, device=scope.device),
        )
        for lr in (USUAL, HIGH)
        for model in (*BY_TOKEN, *FOLDING)
    ]


def findings(trained: list[Trained], scope: Scope) -> dict[str, Any]:
    """A row a norm."""
    usual, high = ([training for training in trained if training.run.options.lr == lr] for lr in (USUAL, HIGH))
    layer_norm_s = next(training.training_time_s for training in usual if training.run.config.model == "vit")
    derived = [_row(*pair, layer_norm_s) for pair in zip(usual, high, strict=True)]
    columns = [
        Column("model"),
        Column("folds"),
        *(Column(f"test accuracy % at {lr}", 2) for lr in (USUAL, HIGH)),
        *(Column(f"largest fall at {lr}, points", 2) for lr in (USUAL, HIGH)),
        Column("training s an epoch", 2),
        Column("of ViT's", 2),
    ]
    rows = [
        [
            row["model"],
            "yes" if row["folds"] else "no",
            *(_percent(row[rate]["test_accuracy"]) for rate in ("usual", "high")),
            *(_percent(row[rate]["largest_fall"]) for rate in ("usual", "high")),
            row["training_time_s"],
            row["of_layer_norm"],
        ]
        for row in derived
    ]
    title = f"Depth {DEPTH}, seed 0; learning rates {USUAL} and {HIGH}; the largest fall is from the best epoch before"
    diverged = [training.run.label for training in trained if training.diverged]
    notes = [f"The loss of {', '.join(diverged)} was no longer finite: stopped."] if diverged else []
    return {"derived": derived, "tables": [table(title, columns, rows)], "notes": notes}


def _row(usual: Trained, high: Trained, layer_norm_s: float) -> dict[str, Any]:
    times = usual.training_time_s if usual.series else None
    return {
        "model": usual.run.config.model,
        "folds": usual.run.config.model in FOLDING,
        "usual": _stability(usual),
        "high": _stability(high),
        "training_time_s": times,
        "of_layer_norm": times / layer_norm_s if times else None,
        "checkpoint": usual.checkpoint.name,
    }


def _stability(training: Trained) -> dict[str, Any]:
    """The last accuracy, and the largest fall below an earlier epoch; None for a run that diverged."""
    accuracies = [epoch.test_accuracy for epoch in training.series]
    if training.diverged or not accuracies:
        return {"test_accuracy": None, "largest_fall": None}
    best = accuracies[0]
    fall = 0.0
    for accuracy in accuracies[1:]:
        fall, best = max(fall, best - accuracy), max(best, accuracy)
    return {"test_accuracy": accuracies[-1], "largest_fall": fall}


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share


def plots(result: Result) -> dict[str, Figure]:
    """Accuracy by epoch, and the time of an epoch."""
    panels: dict[str, Sequence[dict[str, Any]]] = {
        f"learning rate {lr}": [run for run in result["runs"] if run["options"]["lr"] == lr] for lr in (USUAL, HIGH)
    }
    title = f"Test accuracy by norm, depth {DEPTH}"
    return {"test-accuracy": by_epoch(result, ACCURACY, title, panels), "training-time": _times(result)}


def _times(result: Result) -> Figure:
    """A bar a norm."""
    title = "Time to train one epoch, against LayerNorm's"
    figure, (axes,) = row_of_panels(title, footnote(result), [""], "time over ViT's", "", (8.0, 4.2))
    rows = [row for row in result["derived"] if row["of_layer_norm"]]
    for place, row in enumerate(rows):
        colour = style(row["model"])["color"]
        axes.barh(place, row["of_layer_norm"], color=colour if row["folds"] else "#ffffff", edgecolor=colour)
        axes.annotate(f"{row['of_layer_norm']:.2f}", (row["of_layer_norm"], place), (4, -3), textcoords="offset points")
    axes.barh([0], [0], color="#777777", label="folds at export")
    axes.barh([0], [0], color="#ffffff", edgecolor="#777777", label="does not fold")
    axes.set_yticks(range(len(rows)), [NAMES[row["model"]] for row in rows])
    axes.invert_yaxis()
    legend(figure, axes)
    return figure


STUDY = Study(
    name="norms",
    question="Which normalisation trains well, stays stable at a high learning rate, and costs nothing once folded?",
    epochs=10,
    test_batch=100,
    quick=Extent(epochs=2, train_images=1000, test_images=500),
    runs=runs,
    findings=findings,
    plots=plots,
)
