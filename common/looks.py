"""Measures how photos look: the level of their border, and how much of the frame the thing in them fills.

In: images uint8 (n, C, H, W). Out: a number of each image. Training measures its pictures and clients their users'.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

DARK, LIGHT = 64, 191  # levels of a border: below is dark, above is light, between is neither
CONTRAST = 32  # levels between a thing and its border


def border_levels(images: NDArray[np.uint8]) -> NDArray[np.float32]:
    """The median level of each border (n,)."""
    return _border_levels(_grey(images))


def fills(images: NDArray[np.uint8]) -> NDArray[np.float64]:
    """The share of its image's height or width that each thing fills, the larger of the two (n,)."""
    grey = _grey(images)
    things = np.abs(grey - _border_levels(grey)[:, None, None]) > CONTRAST
    return np.maximum(_extent(things.any(axis=2)), _extent(things.any(axis=1)))


def _grey(images: NDArray[np.uint8]) -> NDArray[np.float32]:
    grey: NDArray[np.float32] = images.mean(axis=1, dtype=np.float32)  # (n, H, W)
    return grey


def _border_levels(grey: NDArray[np.float32]) -> NDArray[np.float32]:
    border = np.concatenate((grey[:, 0], grey[:, -1], grey[:, 1:-1, 0], grey[:, 1:-1, -1]), axis=1)
    levels: NDArray[np.float32] = np.median(border, axis=1)
    return levels


def _extent(filled: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Rows or columns (n, side) -> the share from the first to the last filled (n,)."""
    side = filled.shape[1]
    first, last = filled.argmax(axis=1), side - filled[:, ::-1].argmax(axis=1)
    return np.where(filled.any(axis=1), (last - first) / side, 0.0)
