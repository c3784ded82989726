"""The second study: on distorted images, how deep can a network be trained with and without BatchNorm in its FFN?

Training images are distorted as in the published study (`augment="study"`), which distorted its test images, too. Here
the series are of plain test images, and the last epoch is measured on distorted ones as well.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from models.config import ModelConfig, ModelName
from models.plots.figures import NAMES, legend, row_of_panels, style, whole_numbers
from models.plots.results import Column, Result, footnote, table
from models.studies.protocol import Extent, Scope, Study
from models.studies.ratios import compare
from models.studies.running import Run, Trained
from models.studies.series import ACCURACY, TRAINING_TIME, Quantity

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MODELS: tuple[ModelName, ...] = ("vit", "vitbnffn")
# Learning rate -> depths.
DEPTHS = {0.005: (1, 2, 3, 4), 0.003: (4, 5, 6, 7)}


def runs(scope: Scope) -> list[Run]:
    """Both networks at every depth and its learning rate."""
    from models.training import TrainingOptions

    return [
        Run(
            f"{model}-depth-{depth}-lr-{lr}",
            ModelConfig(model=model, depth=depth),
            TrainingOptions(epochs=scope.epochs, batch_size=100, lr=lr, seed=0, device=scope.device, augment="study"),
        )
        for lr, depths in DEPTHS.items()
        for depth in depths
        for model in MODELS
    ]


def findings(trained: list[Trained], scope: Scope) -> dict[str, Any]:
    """A row a depth and learning rate: accuracies of both networks, and ratios of times."""
    pairs = list(zip(trained[::2], trained[1::2], strict=True))
    derived = [_pair(vit, other, scope) for vit, other in pairs]
    accuracies = [f"{model} {images} %" for model in MODELS for images in ("test accuracy", "on distorted images")]
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
            *(100 * row[model][kind] for model in MODELS for kind in ("test_accuracy", "distorted_test_accuracy")),
            *(row["r_t"], 100 * row["g_t"], row["r_v"], 100 * row["g_v"]),
        ]
        for row in derived
    ]
    title = "Accuracy after the last epoch; times of ViT over those of ViTBNFFN, r_t training, r_v test, g = 1 - 1/r"
    return {"derived": derived, "tables": [table(title, columns, rows)], "notes": []}


def _pair(vit: Trained, other: Trained, scope: Scope) -> dict[str, Any]:
    """Both networks at one depth and learning rate."""
    row: dict[str, Any] = {"depth": vit.run.config.depth, "lr": vit.run.options.lr}
    for training in (vit, other):
        row[training.run.config.model] = {
            "test_accuracy": training.series[-1].test_accuracy,
            "distorted_test_accuracy": _distorted_accuracy(training, scope),
            "training_time_s": training.training_time_s,
            "test_time_s": training.test_time_s,
        }
    return row | compare([vit], [other])


def _distorted_accuracy(training: Trained, scope: Scope) -> float:
    """Accuracy on the test images, distorted with a fixed seed."""
    import torch

    from models.augmentation import augmentation
    from models.checkpoint import load
    from models.training import measure_accuracy

    torch.manual_seed(0)
    images, labels = (
        torch.tensor(part, device=scope.device) for part in (scope.dataset.test_images, scope.dataset.test_labels)
    )
    network = load(training.checkpoint).model.to(scope.device)
    return measure_accuracy(network, images, labels, augmentation("study"))


def plots(result: Result) -> dict[str, Figure]:
    """Accuracy and time over depth."""
    return {
        "test-accuracy": _over_depth(result, ACCURACY, "Test accuracy after training on distorted digits"),
        "training-time": _over_depth(result, TRAINING_TIME, "Time to train one epoch of distorted digits"),
    }


def _over_depth(result: Result, quantity: Quantity, title: str) -> Figure:
    """A panel a learning rate, a line a model."""
    titles = [f"learning rate {lr}" for lr in DEPTHS]
    figure, row = row_of_panels(title, footnote(result), titles, "depth (blocks)", quantity.label)
    for axes, lr in zip(row, DEPTHS, strict=True):
        shown = [derived for derived in result["derived"] if derived["lr"] == lr]
        for model in MODELS:
            values = [quantity.factor * derived[model][quantity.key] for derived in shown]
            axes.plot([derived["depth"] for derived in shown], values, **style(model), label=NAMES[model])
        whole_numbers(axes)
    quantity.scale(row[0])
    legend(figure, row[0])
    return figure


STUDY = Study(
    name="depths",
    question="On distorted digits, how deep can a network be trained with and without BatchNorm in its FFN?",
    epochs=10,
    test_batch=5000,
    quick=Extent(epochs=3, train_images=1500, test_images=1000),
    runs=runs,
    findings=findings,
    plots=plots,
)
