"""A trial: chooses between several ways to train, by short trainings on a part of the pictures.

In: a dataset, and a configuration and options for each way; the first way is the usual way. Out: the name of the best
way, and the reason as a line for the user. A short training takes a quarter of the epochs and three quarters of the
training pictures; the last quarter judges it. With fewer than FEWEST pictures, every quarter judges in turn, and a way
is left once it can no longer be chosen. (Its accuracy in early epochs tells little: rolled pictures of noise are at
chance for a quarter of them, and all right at the end.)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from models.data import Dataset
from models.networks.config import Augmentation, ModelConfig
from models.training.augmentation_check import shares_right
from models.training.folder_defaults import FEWEST
from models.training.loop import train
from models.training.recipe import TrainingOptions

QUARTERS = 4  # parts of the pictures, and of the epochs
Indices = NDArray[np.int64]
Way = tuple[ModelConfig, TrainingOptions]
LEAD = 0.05  # a smaller lead, as a share of the judging pictures, may be chance
RECOLOURED: Augmentation = "turn-colour"


def images_seen(data: Dataset, ways: Sequence[Way]) -> int:
    """The pictures that all short trainings see at most, with repeats: the length of a progress bar."""
    return sum(
        _epochs(options) * len(training)
        for _, options in ways
        for _, training in _folds(len(data.train_labels), options)
    )


def best_way(data: Dataset, ways: Mapping[str, Way], on_batch: Callable[[int, float], None]) -> tuple[str, str]:
    """The name of the best of `ways`, and the reason. Raises TrainingError.

    A way is left after the first quarter with which it cannot be chosen any more, however the others end: the choice
    is the same as without.
    """
    usual, right, judged = next(iter(ways)), dict[str, int](), dict[str, int]()
    folds = _folds(len(data.train_labels), ways[usual][1])
    count = sum(len(judging) for judging, _ in folds)
    for name, way in ways.items():
        right[name] = judged[name] = 0
        for fold in folds:
            right[name] += _right(data, *way, fold, on_batch)
            judged[name] += len(fold[0])
            ends = range(right[name], right[name] + count - judged[name] + 1)  # what all pictures together may give
            if not any(_best(ways, right | {name: end}, count) == name for end in ends):
                break
        if right[usual] + LEAD * count >= count or right[name] == count:
            break  # no other way can be clearly better
    shares = ", ".join(f"{_share(right[name], judged[name], count)} {name}" for name in right)
    reason = f"trained {_best(ways, right, count)}, as of {count} pictures kept apart for a trial were right: {shares}"
    return _best(ways, right, count), reason + _simpler(data, max(right.values()) / count, count)


def _best(ways: Mapping[str, Way], right: Mapping[str, int], count: int) -> str:
    """The way to choose by the `right` answers of `count`: the first is the usual way, which others must clearly lead.
    Of equal ways the first.
    """
    usual, *others = right
    lead = (
        name for name in others if right[name] > right[usual] + _chance(ways[name], right[usual] + right[name], count)
    )
    return max((usual, *lead), key=lambda name: right[name])


def _share(right: int, judged: int, count: int) -> str:
    """A share as the user reads it; of a way that was left, of the pictures that judged it."""
    of = f" of the first {judged}" if judged < count else ""
    return f"{100 * right / judged:.0f} %{of}"


def _simpler(data: Dataset, share: float, count: int) -> str:
    """A warning if ridge regression is clearly right more often than the best way, whose `share` of `count` pictures is
    right; else empty.
    """
    ridge, _ = shares_right(data.train_images, data.train_labels, augment="none", mixup=0.0)
    if ridge <= share + 2 * math.sqrt(share * (1 - share) / count) + LEAD:
        return ""
    return f"; ridge regression is right for {100 * ridge:.0f} %, so a simpler tool may suit these pictures"


def _chance(way: Way, right: int, count: int) -> float:
    """The lead over the usual way, in pictures, that may be chance: twice its standard error.

    `right`: the right answers of both ways together, of 2 `count`. Recoloured pictures need a smaller lead: a short
    trial shows all that they ruin, but little of what they gain.
    """
    share = right / (2 * count)
    return LEAD * count if way[1].augment == RECOLOURED else 2 * math.sqrt(2 * share * (1 - share) * count)


def _right(
    data: Dataset,
    config: ModelConfig,
    options: TrainingOptions,
    fold: tuple[Indices, Indices],
    on_batch: Callable[[int, float], None],
) -> int:
    """The number of right answers of a way, over the judging pictures of a fold."""
    short = replace(options, epochs=_epochs(options), ema=None, hold_out=0, teacher_cache=None)
    *_, last = train(config, _fold(data, *fold), short, None, on_batch=on_batch)
    return round((last.test_accuracy or 0.0) * len(fold[0]))


def _folds(count: int, options: TrainingOptions) -> list[tuple[Indices, Indices]]:
    """Folds as in cross-validation: the indices of the pictures that judge, and of those that teach."""
    parts = np.array_split(np.random.default_rng(options.seed).permutation(count), QUARTERS)
    folds = [(part, np.concatenate([*parts[:k], *parts[k + 1 :]])) for k, part in enumerate(parts)]
    return folds if count < FEWEST else folds[:1]


def _fold(data: Dataset, judging: Indices, training: Indices) -> Dataset:
    """A dataset of two parts of the training pictures: `judging` is its test part."""
    images, labels = data.train_images, data.train_labels
    return Dataset(
        data.name,
        *(images[training], labels[training], images[judging], labels[judging], data.labels),
        preprocessing=data.preprocessing,
    )


def _epochs(options: TrainingOptions) -> int:
    return -(-options.epochs // QUARTERS)
