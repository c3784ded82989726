"""Measures how photos look: things on a dark or a light background, and how much of the frame they fill.

In: images uint8 (n, C, H, W). Out: a number of each image; of training photos the fields `background` and `fill` of a
configuration. Clients compare users' pictures with them: a model of garments on black takes a product photo on white
for a bag.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

DARK, LIGHT = 64, 191  # levels of a border: below is dark, above is light, between is neither
CONTRAST = 32  # levels between a thing and its border
SAME_BACKGROUND_SHARE = 0.99  # of the training photos must have the same kind of border
FILL_PERCENTILE = 0.5  # percent of the training photos fill less than `fill`
MEASURED_IMAGES = 4000  # training photos, evenly chosen


def background_and_fill(images: NDArray[np.uint8]) -> dict[str, Any]:
    """`background` and `fill` of training photos; empty if their backgrounds differ."""
    chosen = images[:: -(-len(images) // MEASURED_IMAGES)]
    level = border_levels(chosen)
    dark, light = float((level < DARK).mean()), float((level > LIGHT).mean())
    if max(dark, light) < SAME_BACKGROUND_SHARE:
        return {}
    least = float(np.percentile(fill_shares(chosen), FILL_PERCENTILE))
    return {"background": "dark" if dark > light else "light", "fill": round(least, 2)}


def border_levels(images: NDArray[np.uint8]) -> NDArray[np.float32]:
    """The median level of each border (n,)."""
    return _border_levels(_grey(images))


def fill_shares(images: NDArray[np.uint8]) -> NDArray[np.float64]:
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
