"""Whether distorted and mixed copies of pictures hide what tells their classes apart, judged by simple models.

In: images, labels and the distortion's options. Out: yes or no. The models are four kernel ridge regressions (Saunders,
Gammerman and Vovk, 1998): a linear and a Gaussian kernel, on pixels and on shades. Shades are quantiles of a channel's
levels, wherever in the picture they are. In four folds three quarters of the pictures teach and the fourth judges. A
thousand pictures take seconds.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from models.networks.config import INPUT_SCALE, Augmentation
from models.training.augmentation import augmentation
from models.training.mixing import as_probabilities, mixed

FOLDS = 4
MOST, MOST_NUMBERS = 1000, 16_000_000  # limits of the pictures that are compared, and of the numbers in them
FEWEST_COMPARED = 16  # pictures: what fewer show is chance
QUANTILES = torch.linspace(0.05, 0.95, 10)  # of a channel's levels; extremes are noise
EASY = 0.9  # share of right answers from which distortions put more at risk than they can gain
ERRORS = 2  # a smaller lead, in standard errors of a difference of two shares at most, is chance
RIDGE = 0.03  # beside a kernel whose mean diagonal is 1


def hide_classes(images: NDArray[np.uint8], labels: NDArray[np.int64], augment: Augmentation, mixup: float) -> bool:
    """Whether models learn clearly less from changed pictures, or are nearly always right without changes."""
    if (count := len(_compared(images))) < FEWEST_COMPARED:
        return False
    unchanged, changed = shares_right(images, labels, augment, mixup)
    return unchanged >= EASY or unchanged > changed + ERRORS * math.sqrt(0.5 / count)


def shares_right(
    images: NDArray[np.uint8], labels: NDArray[np.int64], augment: Augmentation, mixup: float
) -> tuple[float, float]:
    """Shares of right answers in [0, 1]: of the best model trained on the pictures, and of the best trained on changed
    pictures. `images`: uint8 (n, C, H, W); `labels`: int64 (n,).
    """
    compared, classes = _compared(images), int(labels.max()) + 1
    compared = compared[labels[compared].argsort(kind="stable")]  # every fold gets its share of every class
    folds = tuple(torch.arange(len(compared))[fold::FOLDS] for fold in range(FOLDS))
    pixels, truths = torch.tensor(images[compared]) * INPUT_SCALE, torch.tensor(labels[compared])
    targets = as_probabilities(truths, classes)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        changed, shares = augmentation(augment)(pixels), targets
        if mixup:
            changed, shares = mixed(changed, shares, mixup)
    by_model = [
        _share_right(kernel, truths, (targets, shares), folds)
        for numbers in ((pixels, changed), (_shades(pixels), _shades(changed)))
        for kernel in _kernels(*numbers)
    ]
    unchanged_shares, changed_shares = zip(*by_model, strict=True)
    return max(unchanged_shares), max(changed_shares)


def _compared(images: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Indices of the images that are compared, in random order."""
    return np.random.default_rng(0).permutation(len(images))[: min(MOST, MOST_NUMBERS // images[0].size)]


def _shades(pixels: Tensor) -> Tensor:
    """(n, C, H, W) -> (n, C, quantiles)."""
    levels = pixels.flatten(2).sort().values
    return levels[:, :, (QUANTILES * (levels.shape[2] - 1)).round().long()]


def _kernels(pictures: Tensor, changed: Tensor) -> tuple[Tensor, Tensor]:
    """Linear and Gaussian kernel between all rows of the pictures and their changed copies: float64 (2 n, 2 n)."""
    rows = torch.cat((pictures, changed)).flatten(1)
    rows = rows - rows[: len(pictures)].mean(0)
    products = (rows @ rows.T).double()
    squares = products.diagonal()
    spread = squares[: len(pictures)].mean().clamp(min=1e-12)  # mean squared distance of a picture from the mean
    apart = (squares[:, None] + squares - 2 * products).clamp(min=0)
    return products / spread, (-apart / spread).exp()


def _share_right(
    kernel: Tensor, truths: Tensor, targets: tuple[Tensor, Tensor], folds: tuple[Tensor, ...]
) -> tuple[float, float]:
    """Shares of right answers on the unchanged pictures: of the model trained on them, and of the model trained on
    changed copies. `kernel`: (2 n, 2 n); `truths`: (n,); `targets`: (n, classes) of the pictures and of the copies.
    """
    count, right = len(truths), [0, 0]
    for number, judging in enumerate(folds):
        training = torch.cat([fold for other, fold in enumerate(folds) if other != number])
        for kind, target in enumerate(targets):
            rows, wanted = training + kind * count, target[training].double()
            regularised = kernel[rows][:, rows] + RIDGE * torch.eye(len(rows))
            coefficients = torch.linalg.solve(regularised, wanted - wanted.mean(0))
            answers = kernel[judging][:, rows] @ coefficients + wanted.mean(0)
            right[kind] += int((answers.argmax(1) == truths[judging]).sum())
    return right[0] / count, right[1] / count
