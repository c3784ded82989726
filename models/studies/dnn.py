"""BatchNorm's first study.

Ioffe and Szegedy, "Batch Normalization", 2015, section 4.1, with Adam at two learning rates. Training and test images
are distorted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from models.config import ModelConfig, ModelName
from models.plots.results import Result
from models.studies.protocol import Extent, Scope, Study
from models.studies.ratios import compare
from models.studies.running import Run, Trained
from models.studies.series import ACCURACY, LOSS, by_epoch, runs_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RATES = (0.01, 0.1)
MODELS: tuple[ModelName, ...] = ("dnn", "dnnbn")


def runs(scope: Scope) -> list[Run]:
    return [
        Run(
            f"{model}-lr-{lr}",
            ModelConfig(model=model),
            scope.options(lr, augment="study", augment_test=True),
        )
        for lr in RATES
        for model in MODELS
    ]


def findings(trained: list[Trained], scope: Scope) -> dict[str, Any]:
    def of(model: ModelName, lr: float) -> list[Trained]:
        return [training for training in trained if (training.run.config.model, training.run.options.lr) == (model, lr)]

    derived = [{"lr": lr, **compare(of("dnn", lr), of("dnnbn", lr))} for lr in RATES]
    said = ", ".join(f"{row['r_t']:.2f} at a learning rate of {row['lr']}" for row in derived if row["r_t"])
    notes = [f"DNN's time for an epoch over DNNBN's: {said}."] if said else []
    return {"derived": derived, "tables": [runs_table(trained)], "notes": notes}


def plots(result: Result) -> dict[str, Figure]:
    panel = {"": result["runs"]}
    return {
        "test-accuracy": by_epoch(result, ACCURACY, "Three hidden layers with sigmoids: test accuracy", panel),
        "training-loss": by_epoch(result, LOSS, "Three hidden layers with sigmoids: training loss", panel),
    }


STUDY = Study(
    name="dnn",
    question="What does BatchNorm do for a network of three hidden layers of 100 with sigmoids?",
    epochs=15,
    test_batch=5000,
    quick=Extent(epochs=15, train_images=10_000, test_images=2000),
    runs=runs,
    findings=findings,
    plots=plots,
)
