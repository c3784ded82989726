"""Tries whether other colours help or ruin a training, on a part of its pictures.

In: a dataset, a configuration and options. Out: the better distortion and why. A quarter of the training pictures
judges trainings on the others, of a quarter of the epochs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from models.data import Dataset
from models.networks.config import Augmentation, ModelConfig
from models.training.loop import train
from models.training.recipe import TrainingOptions

PART = 4  # of the pictures and of the epochs a 4th
TRIED: tuple[Augmentation, Augmentation] = ("turn", "turn-colour")
LEAD = 0.05  # of the pictures that judge: less is chance, and then colours stay


def images_seen(data: Dataset, options: TrainingOptions) -> int:
    """By both trainings, with repeats."""
    count = len(data.train_labels)
    return len(TRIED) * _epochs(options) * (count - count // PART)


def other_colours(
    config: ModelConfig, data: Dataset, options: TrainingOptions, on_batch: Callable[[int, float], None]
) -> tuple[Augmentation, str]:
    """The distortion and the reason. Raises TrainingError."""
    order = np.random.default_rng(options.seed).permutation(len(data.train_labels))
    apart, others = np.split(order, [len(order) // PART])
    images, labels = data.train_images, data.train_labels
    part = Dataset(
        data.name,
        *(images[others], labels[others], images[apart], labels[apart], data.labels),
        preprocessing=data.preprocessing,
    )
    short, shares = replace(options, epochs=_epochs(options), ema=None, hold_out=0, teacher_cache=None), []
    with TemporaryDirectory() as folder:
        for augment in TRIED:
            path = Path(folder) / f"{augment}.safetensors"
            *_, last = train(config, part, replace(short, augment=augment), path, on_batch=on_batch)
            shares.append(last.test_accuracy or 0.0)
    usual, recoloured = shares
    told = f"of {len(apart)} pictures kept apart for a trial {100 * recoloured:.0f} % were right with other colours"
    return TRIED[recoloured > usual + LEAD], f"{told}, {100 * usual:.0f} without"


def _epochs(options: TrainingOptions) -> int:
    return -(-options.epochs // PART)
