"""Whether distorted and mixed copies of pictures hide what tells their classes, by simple models.

In: images and labels, options. Out: yes or no. Four kernel ridge regressions (Saunders, Gammerman and Vovk, 1998): of
pixels and of shades, the quantiles of each channel wherever they are; linear and Gaussian. Three quarters of the
pictures teach, the fourth judges; each quarter in turn. A thousand pictures take seconds.
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

PARTS = 4
MOST, MOST_NUMBERS = 1000, 16_000_000  # pictures, and numbers in them, that are compared
FEWEST_COMPARED = 16  # pictures: what fewer show is chance
QUANTILES = torch.linspace(0.05, 0.95, 10)  # of a channel's levels; extremes are noise
EASY = 0.9  # of the pictures are right
ERRORS = 2  # standard errors of a share, or a bit more: less is chance
RIDGE = 0.03  # of the mean of the kernel's diagonal


def hide_classes(images: NDArray[np.uint8], labels: NDArray[np.int64], augment: Augmentation, mixup: float) -> bool:
    """Whether models learn clearly less from changed pictures, or are nearly always right, so that more is at risk."""
    if (count := len(_compared(images))) < FEWEST_COMPARED:
        return False
    own, others = shares_right(images, labels, augment, mixup)
    return own >= EASY or own > others + ERRORS / math.sqrt(count)


def shares_right(
    images: NDArray[np.uint8], labels: NDArray[np.int64], augment: Augmentation, mixup: float
) -> tuple[float, float]:
    """Of the best model on pictures as they are, and of the best on changed ones. Images: uint8 (n, C, H, W)."""
    compared, classes = _compared(images), int(labels.max()) + 1
    compared = compared[labels[compared].argsort(kind="stable")]  # each part has its share of each class
    parts = tuple(torch.arange(len(compared))[part::PARTS] for part in range(PARTS))
    pixels, truths = torch.tensor(images[compared]) * INPUT_SCALE, torch.tensor(labels[compared])
    targets = as_probabilities(truths, classes)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        changed, shares = augmentation(augment)(pixels), targets
        if mixup:
            changed, shares = mixed(changed, shares, mixup)
    found = [
        _share_right(kernel, truths, (targets, shares), parts)
        for numbers in ((pixels, changed), (_shades(pixels), _shades(changed)))
        for kernel in _kernels(*numbers)
    ]
    own, others = zip(*found, strict=True)
    return max(own), max(others)


def _compared(images: NDArray[np.uint8]) -> NDArray[np.int64]:
    """The numbers of the images that are compared, in random order."""
    return np.random.default_rng(0).permutation(len(images))[: min(MOST, MOST_NUMBERS // images[0].size)]


def _shades(pixels: Tensor) -> Tensor:
    """(n, C, H, W) -> (n, C, quantiles)."""
    levels = pixels.flatten(2).sort().values
    return levels[:, :, (QUANTILES * (levels.shape[2] - 1)).round().long()]


def _kernels(own: Tensor, changed: Tensor) -> tuple[Tensor, Tensor]:
    """The linear and the Gaussian kernel of the pictures and their changed copies, float64 (2 n, 2 n)."""
    rows = torch.cat((own, changed)).flatten(1)
    rows = rows - rows[: len(own)].mean(0)
    products = (rows @ rows.T).double()
    squares = products.diagonal()
    spread = squares[: len(own)].mean().clamp(min=1e-12)  # of one picture about the mean
    apart = (squares[:, None] + squares - 2 * products).clamp(min=0)
    return products / spread, (-apart / spread).exp()


def _share_right(
    kernel: Tensor, truths: Tensor, targets: tuple[Tensor, Tensor], parts: tuple[Tensor, ...]
) -> tuple[float, float]:
    """Of the pictures as they are: taught by such pictures, and by changed ones."""
    count, right = len(truths), [0, 0]
    for number, judge in enumerate(parts):
        taught = torch.cat([part for other, part in enumerate(parts) if other != number])
        for kind, target in enumerate(targets):
            rows, wanted = taught + kind * count, target[taught].double()
            among = kernel[rows][:, rows] + RIDGE * torch.eye(len(rows))
            learnt = torch.linalg.solve(among, wanted - wanted.mean(0))
            answers = kernel[judge][:, rows] @ learnt + wanted.mean(0)
            right[kind] += int((answers.argmax(1) == truths[judge]).sum())
    return right[0] / count, right[1] / count
