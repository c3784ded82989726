"""Measures photos of single things: the brightness of the background, and how much of the frame the thing fills.

In: images uint8 (n, C, H, W). Out: a number per image, or the fields `background` and `fill` of a model's configuration
from its training photos. Clients compare users' pictures with these fields: a model trained on garments on black
mistakes a product photo on white for a bag.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.preprocessing_settings import Background

DARK, LIGHT = 64, 191  # border levels: a background below DARK is dark, above LIGHT it is light
CONTRAST = 32  # a pixel of the thing differs from the border by more levels
SAME_BACKGROUND_SHARE = 0.99  # at least this share of the training photos of each class must have the same background
FAR = 6  # standard deviations of the borders' levels from the other background: at most 3 % are beyond (Cantelli)
FILL_PERCENTILE = 0.5  # percent of the training photos that fill less than `fill`
MEASURED_IMAGES = 4000  # evenly spaced training photos. A class without a photo among these is measured whole.


def background_and_fill(images: NDArray[np.uint8], labels: NDArray[np.int64]) -> dict[str, Any]:
    """The fields `background` and `fill` of training photos uint8 (n, C, H, W) with `labels` (n,); empty if their
    backgrounds differ, or may differ in photos like them: of FAR ** 2 photos or fewer, or of widely spread levels.
    """
    levels = _levels_by_class(images, labels)
    background = _same_background(levels)
    if background is None or not _is_far(np.concatenate(levels), LIGHT if background == "dark" else DARK):
        return {}
    least = float(np.percentile(fill_shares(_measured(images)), FILL_PERCENTILE))
    return {"background": background, "fill": round(least, 2)}


def same_background(images: NDArray[np.uint8], labels: NDArray[np.int64]) -> Background | None:
    """The background of these photos uint8 (n, C, H, W) with `labels` (n,), however few; None if they differ."""
    return _same_background(_levels_by_class(images, labels))


def _measured(values: NDArray[Any]) -> NDArray[Any]:
    return values[:: -(-len(values) // MEASURED_IMAGES)]


def _levels_by_class(images: NDArray[np.uint8], labels: NDArray[np.int64]) -> list[NDArray[np.float32]]:
    measured, of_measured = _measured(images), _measured(labels)
    return [
        border_levels(own if len(own := measured[of_measured == label]) else images[labels == label])
        for label in np.unique(labels)
    ]


def _same_background(levels: Sequence[NDArray[np.float32]]) -> Background | None:
    """`levels`: of each class's borders."""
    dark, light = min(float((own < DARK).mean()) for own in levels), min(float((own > LIGHT).mean()) for own in levels)
    if max(dark, light) < SAME_BACKGROUND_SHARE:
        return None
    return "dark" if dark > light else "light"


def _is_far(levels: NDArray[np.float32], other: int) -> bool:
    """Whether borders like `levels` (n,) hardly ever reach the level of the `other` background. A photo of that level
    is counted beside them: few photos do not show what is rare.
    """
    counted = np.append(levels, other).astype(np.float64)
    return bool(abs(counted.mean() - other) > FAR * counted.std())


def border_levels(images: NDArray[np.uint8]) -> NDArray[np.float32]:
    """The median grey level of each image's outermost pixels: uint8 (n, C, H, W) -> (n,)."""
    return _border_levels(_grey(images))


def fill_shares(images: NDArray[np.uint8]) -> NDArray[np.float64]:
    """The larger share of the frame's height or width that each thing spans: uint8 (n, C, H, W) -> (n,), 0 to 1."""
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
    """The share of rows or columns from the first filled one to the last: bool (n, side) -> (n,)."""
    side = filled.shape[1]
    first, last = filled.argmax(axis=1), side - filled[:, ::-1].argmax(axis=1)
    return np.where(filled.any(axis=1), (last - first) / side, 0.0)
