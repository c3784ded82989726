"""What a training on a user's folder uses where no option is given: it follows the number and size of the pictures.

In: a dataset, and the options that are given. Out: values by option. docs/results.md has what they reach, and beside
which others they were chosen.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from models.data import Dataset

STEPS = 3000  # of the optimiser: fewer leave a transformer short of a logistic regression
MANY = 5000  # pictures


def usual(data: Dataset, given: Mapping[str, Any]) -> dict[str, Any]:
    """None of the options `given`; {} for the datasets that have a name."""
    if data.pictures is None:
        return {}
    count = len(data.train_labels)
    batch = 16 if count < MANY else 64
    values: dict[str, Any] = {
        "depth": 2 if count < MANY else 4,
        "patch_size": data.patch_size,
        "batch_size": batch,
        "epochs": max(20, min(200, STEPS * batch // count)),
        "lr": 0.003,
        "schedule": "one-cycle",
        "augment": "light",
        "ema": 0.99,
    }
    return {name: value for name, value in values.items() if name not in given}
