"""The studies as data. A study's runs are all combinations of the choices of its axes.

Sources: Anindya Dey's two articles for `learning-rates`, `optimised`, `depths` and `dnn` (CITATION.cff); Ioffe and
Szegedy, "Batch Normalization", 2015, section 4.1, for the network of `dnn`; Touvron et al., "CaiT", 2021, for the CLS
token that enters in the last block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from models.networks.config import BY_TOKEN, TRANSFORMER_NAMES, ModelName

Fields = dict[str, Any]
"""Field of ModelConfig or TrainingOptions -> value; `teacher` may name a shipped checkpoint."""
Axis = dict[str, Fields]
"""Name of a choice -> its fields."""


class Extent(NamedTuple):
    """How much of a study is run."""

    epochs: int
    train_images: int
    test_images: int


@dataclass(frozen=True)
class Study:
    """A question, and the trainings that answer it.

    `axes`: option of the command that picks choices -> axis, outermost first. `fixed`: fields of all runs. `hours`: of
    all runs with one seed, on one thread. `reference`: axis -> choice of the network whose times are divided by the
    others'. `x`: horizontal axis of the pictures, `epoch` or one of `axes`. If there are several axes, the pictures
    have a panel for each choice of the first.
    """

    question: str
    axes: dict[str, Axis]
    epochs: int
    hours: float
    quick: Extent
    fixed: Fields = field(default_factory=dict)
    test_batch: int = 5000
    datasets: Sequence[str] = ("mnist",)
    reference: dict[str, str] = field(default_factory=dict)
    x: str = "epoch"


def values(field_name: str, *choices: object) -> Axis:
    """An axis whose choices are values of one field, and are named by them."""
    return {str(choice): {field_name: choice} for choice in choices}


def models(*names: ModelName) -> Axis:
    return values("model", *names)


FOLDING = tuple(name for name in TRANSFORMER_NAMES if name not in (*BY_TOKEN, "vitbnffn"))  # their norms fold
LATE = {"class_attention": (32, 16)}  # the CLS token enters in the last block
RECIPE: Fields = {
    "batch_size": 128,
    "schedule": "one-cycle",
    "weight_decay": 0.05,
    "clip": 1.0,
    "augment": "elastic",
    "ema": 0.999,
    "hold_out": 5000,
    "teacher": "cnn",
}
DISTORTED: Fields = {"augment": "study", "augment_test": True}

STUDIES: dict[str, Study] = {
    "learning-rates": Study(
        "Does BatchNorm let a Vision Transformer train faster, and at higher learning rates, than LayerNorm?",
        {
            "rate": values("lr", 0.0005, 0.005, 0.01),
            "depth": values("depth", 6, 1),
            "model": models("vit", "vitbnffn", "vitbn"),
        },
        epochs=30,
        hours=4.8,
        quick=Extent(epochs=3, train_images=2000, test_images=1000),
        datasets=("mnist", "fashion-mnist"),
        reference={"depth": "6", "model": "vit"},
    ),
    "depths": Study(
        "On distorted digits, how deep can a network be trained with and without BatchNorm in its FFN?",
        {
            "rate": values("lr", 0.005, 0.003),
            "depth": values("depth", *range(1, 8)),
            "model": models("vit", "vitbnffn"),
        },
        epochs=10,
        hours=4.0,
        quick=Extent(epochs=3, train_images=1500, test_images=1000),
        fixed=DISTORTED,
        reference={"model": "vit"},
        x="depth",
    ),
    "dnn": Study(
        "What does BatchNorm do for a network of three hidden layers of 100 with sigmoids?",
        {"rate": values("lr", 0.01, 0.1), "model": models("dnn", "dnnbn")},
        epochs=15,
        hours=0.3,
        quick=Extent(epochs=15, train_images=10_000, test_images=2000),
        fixed=DISTORTED,
        reference={"model": "dnn"},
    ),
    "norms": Study(
        "Which norm trains well, stays stable at a high learning rate, and costs nothing once folded?",
        {
            "way": {
                "usual": {"lr": 0.001},
                "high": {"lr": 0.01},
                "recipe": {"lr": 0.001, "schedule": "one-cycle", "clip": 1.0},
            },
            "norm": models(*BY_TOKEN, *FOLDING),
        },
        epochs=10,
        hours=5.3,
        quick=Extent(epochs=2, train_images=1000, test_images=500),
        fixed={"depth": 6},
        test_batch=100,
        datasets=("mnist", "fashion-mnist", "cifar10"),
        reference={"norm": "vit"},
    ),
    "designed": Study(
        "How accurate are networks designed for their rewritten cost, all trained with one recipe?",
        {
            "network": {
                "wide": {"depth": 1, "heads": 32, "dim_head": 16, "mlp_dim": 256},
                "late": {"depth": 2, "dim": 32, "heads": 8, "dim_head": 16, **LATE},
                "late-4": {"depth": 2, "dim": 32, "heads": 4, "dim_head": 16, **LATE},
                "late-64": {"depth": 2, "heads": 4, "mlp_dim": 256, **LATE},
                "late-deep": {"depth": 4, "heads": 4, **LATE},
            }
        },
        epochs=40,
        hours=1.5,
        quick=Extent(epochs=2, train_images=1200, test_images=500),
        fixed=RECIPE | {"lr": 0.003},
        test_batch=100,
    ),
    "six-blocks": Study(
        "How accurate are the published networks of six blocks, all trained with one recipe?",
        {"network": {**models("vit", "vitbnffn", "vitbn"), "vitbn-late": {"model": "vitbn", **LATE}}},
        epochs=12,
        hours=1.1,
        quick=Extent(epochs=2, train_images=1200, test_images=500),
        fixed=RECIPE | {"lr": 0.0015, "depth": 6},
        test_batch=100,
    ),
    "recipe": Study(
        "What does each part of the recipe bring to a network of one block? Each row has the parts above it too.",
        {
            "parts": {
                "elastic": {"augment": "elastic"},
                "pens": {"augment": "pens"},
                "standardise": {"augment": "pens", "standardise": True},
                "teacher": {"augment": "pens", "standardise": True, "teacher": "cnn"},
                "average": {"augment": "pens", "standardise": True, "teacher": "cnn", "ema": 0.999},
            }
        },
        epochs=4,
        hours=0.4,
        quick=Extent(epochs=1, train_images=1200, test_images=500),
        fixed={
            **{"model": "vitbn", "depth": 1, "heads": 32, "dim_head": 16, "mlp_dim": 256, "lr": 0.003},
            **{"batch_size": 128, "schedule": "one-cycle", "weight_decay": 0.05, "clip": 1.0, "hold_out": 5000},
        },
        test_batch=100,
    ),
    "optimised": Study(
        "How do the models compare when each is trained at its own searched learning rate and batch size?",
        {"network": {}},
        epochs=30,
        hours=6.1,
        quick=Extent(epochs=4, train_images=4000, test_images=1000),
        reference={"network": "vit"},
    ),
}
"""The fields of `optimised` come from the files of `vitbn tune`."""
