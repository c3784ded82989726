"""Whether the shades of pictures tell their classes better than their forms do.

In: images and labels. A picture's nearest picture by shades has the most alike levels, wherever they are; by forms the
most alike pixels at equal mean and contrast. Of 150 pictures in five greys all have a nearest picture of their class by
shades, 27 % by forms; of 48 to 152 garments 24 to 42 and 56 to 72 %.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

QUANTILES = np.linspace(0.05, 0.95, 10)  # of a channel's levels; extremes are noise
LEAD = 0.2  # of the pictures: 48 shapes in random colours lead by 0.1 by chance

Numbers = NDArray[np.float64]


def tell_classes(images: NDArray[np.uint8], labels: NDArray[np.int64]) -> bool:
    """For hundreds of images, uint8 (n, C, H, W): all are compared with each other."""
    levels = images.reshape(*images.shape[:2], -1).astype(np.float64)  # (n, C, H W)
    shades = np.quantile(levels, QUANTILES, axis=2).swapaxes(0, 1)  # (n, quantiles, C)
    centred = levels - levels.mean(2, keepdims=True)
    forms = centred / (centred.std(2, keepdims=True) + 1)  # a level, so that flat pictures stay flat
    return _hits(shades, labels) > _hits(forms, labels) + LEAD


def _hits(numbers: Numbers, labels: NDArray[np.int64]) -> float:
    """The share of rows whose nearest row has their label. `numbers`: (n, …)."""
    rows = numbers.reshape(len(numbers), -1)
    squares = (rows**2).sum(1)
    apart = squares[:, None] + squares - 2 * rows @ rows.T  # (n, n)
    np.fill_diagonal(apart, np.inf)
    return float((labels[apart.argmin(1)] == labels).mean())
