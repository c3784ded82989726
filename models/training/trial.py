"""Tries ways to train on a part of the pictures.

In: a dataset, and for each way a configuration and options; the first way is the usual one. Out: the best way, and why.
A quarter of the training pictures judges trainings on the others for a quarter of the epochs. Of fewer than FEWEST
pictures each quarter judges in turn.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from numpy.typing import NDArray

from models.data import Dataset
from models.networks.config import Augmentation, ModelConfig
from models.training.defaults import FEWEST
from models.training.loop import train
from models.training.recipe import TrainingOptions
from models.training.simple_models import shares_right

PART = 4  # of the pictures and of the epochs a 4th
Numbers = NDArray[np.int64]
Way = tuple[ModelConfig, TrainingOptions]
LEAD = 0.05  # of the pictures that judge
RECOLOURED: Augmentation = "turn-colour"


def images_seen(data: Dataset, ways: Sequence[Way]) -> int:
    """By all trainings, with repeats."""
    return sum(
        _epochs(options) * len(others) for _, options in ways for _, others in _parts(len(data.train_labels), options)
    )


def best_way(data: Dataset, ways: Mapping[str, Way], on_batch: Callable[[int, float], None]) -> tuple[str, str]:
    """The name of the best of `ways`, and the reason. Raises TrainingError."""
    usual, right = next(iter(ways)), dict[str, int]()
    count = sum(len(apart) for apart, _ in _parts(len(data.train_labels), ways[usual][1]))
    for name, way in ways.items():
        right[name] = _right(data, *way, on_batch)
        if right[usual] + LEAD * count >= count or right[name] == count:
            break  # no other can be better
    least = {name: right[usual] + _chance(ways[name], right[usual] + right[name], count) for name in right}
    taken = max((name for name in right if name == usual or right[name] > least[name]), key=lambda name: right[name])
    shares = ", ".join(f"{100 * number / count:.0f} % {name}" for name, number in right.items())
    told = f"trained {taken}, as of {count} pictures kept apart for a trial were right: {shares}"
    return taken, told + _simpler(data, max(right.values()) / count, count)


def _simpler(data: Dataset, share: float, count: int) -> str:
    """What the user should know if simple models are clearly right for more than `share` of `count` pictures."""
    own, _ = shares_right(data.train_images, data.train_labels, augment="none", mixup=0.0)
    if own <= share + 2 * math.sqrt(share * (1 - share) / count) + LEAD:
        return ""
    return f"; ridge regression is right for {100 * own:.0f} %, so a simpler tool may suit these pictures"


def _chance(way: Way, right: int, count: int) -> float:
    """The lead, in pictures, that may be chance: twice its standard error, where two ways have `right` of 2 `count`.

    Of other colours less: a short trial shows little of what they gain, and all that they ruin.
    """
    share = right / (2 * count)
    return LEAD * count if way[1].augment == RECOLOURED else 2 * math.sqrt(2 * share * (1 - share) * count)


def _right(data: Dataset, config: ModelConfig, options: TrainingOptions, on_batch: Callable[[int, float], None]) -> int:
    """The number of right answers."""
    short = replace(options, epochs=_epochs(options), ema=None, hold_out=0, teacher_cache=None)
    right = 0
    with TemporaryDirectory() as folder:
        for apart, others in _parts(len(data.train_labels), options):
            path = Path(folder) / "trial.safetensors"
            *_, last = train(config, _judged(data, apart, others), short, path, on_batch=on_batch)
            right += round((last.test_accuracy or 0.0) * len(apart))
    return right


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
