"""Tries whether other colours help or ruin a training, on a part of its pictures.

In: a dataset, a configuration and options. Out: the better distortion and why. A quarter of the training pictures
judges trainings on the others for a quarter of the epochs. Of fewer than FEWEST pictures each quarter judges in turn.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from numpy.typing import NDArray

from models.data import Dataset
from models.networks.config import Augmentation, ModelConfig
from models.training.defaults import FEWEST
from models.training.loop import train
from models.training.recipe import TrainingOptions

PART = 4  # of the pictures and of the epochs a 4th
Numbers = NDArray[np.int64]
RECOLOURED: Augmentation = "turn-colour"
LEAD = 0.05  # of the pictures that judge: less is chance, and then colours stay


def images_seen(data: Dataset, options: TrainingOptions) -> int:
    """By all trainings, with repeats."""
    parts = _parts(len(data.train_labels), options)
    return 2 * _epochs(options) * sum(len(others) for _, others in parts)


def other_colours(
    config: ModelConfig, data: Dataset, options: TrainingOptions, on_batch: Callable[[int, float], None]
) -> tuple[Augmentation, str]:
    """The distortion, that of `options` or other colours, and the reason. Raises TrainingError."""
    short = replace(options, epochs=_epochs(options), ema=None, hold_out=0, teacher_cache=None)
    parts, right = _parts(len(data.train_labels), options), {options.augment: 0.0, RECOLOURED: 0.0}
    with TemporaryDirectory() as folder:
        for augment, (apart, others) in product(right, parts):
            part, path = _judged(data, apart, others), Path(folder) / "trial.safetensors"
            *_, last = train(config, part, replace(short, augment=augment), path, on_batch=on_batch)
            right[augment] += (last.test_accuracy or 0.0) * len(apart)
    count = sum(len(apart) for apart, _ in parts)
    usual, recoloured = (number / count for number in right.values())
    told = f"of {count} pictures kept apart for a trial {100 * recoloured:.0f} % were right with other colours"
    return RECOLOURED if recoloured > usual + LEAD else options.augment, f"{told}, {100 * usual:.0f} without"


def _parts(count: int, options: TrainingOptions) -> list[tuple[Numbers, Numbers]]:
    """Of each part the numbers of the pictures that judge and of the others."""
    parts = np.array_split(np.random.default_rng(options.seed).permutation(count), PART)
    pairs = [(part, np.concatenate([*parts[:k], *parts[k + 1 :]])) for k, part in enumerate(parts)]
    return pairs if count < FEWEST else pairs[:1]


def _judged(data: Dataset, apart: Numbers, others: Numbers) -> Dataset:
    images, labels = data.train_images, data.train_labels
    return Dataset(
        data.name,
        *(images[others], labels[others], images[apart], labels[apart], data.labels),
        preprocessing=data.preprocessing,
    )


def _epochs(options: TrainingOptions) -> int:
    return -(-options.epochs // PART)
