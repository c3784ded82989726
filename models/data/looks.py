"""How the training photos look: things on a dark or a light background, and how much of the frame they fill.

In: images uint8 (n, C, H, W). Out: the fields `background` and `fill` of a configuration. Clients compare users'
pictures with them and measure alike (clients/images/looks.py): a model of garments on black takes a product photo on
white for a bag.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

DARK, LIGHT = 64, 191  # levels of a border: below is dark, above is light, between is neither
CONTRAST = 32  # levels between a thing and its border
SHARE = 0.99  # of the pictures must have the same kind of border
LEAST = 0.5  # percent of the pictures fill less than `fill`
MEASURED = 4000  # pictures, evenly chosen


def looks(images: NDArray[np.uint8]) -> dict[str, Any]:
    """`background` and `fill`; empty if the backgrounds differ."""
    grey = images[:: -(-len(images) // MEASURED)].mean(axis=1, dtype=np.float32)  # (n, H, W)
    border = np.concatenate((grey[:, 0], grey[:, -1], grey[:, 1:-1, 0], grey[:, 1:-1, -1]), axis=1)
    level = np.median(border, axis=1)  # (n,)
    dark, light = float((level < DARK).mean()), float((level > LIGHT).mean())
    if max(dark, light) < SHARE:
        return {}
    things = np.abs(grey - level[:, None, None]) > CONTRAST
    fill = np.maximum(_extent(things.any(axis=2)), _extent(things.any(axis=1)))
    return {"background": "dark" if dark > light else "light", "fill": round(float(np.percentile(fill, LEAST)), 2)}


def _extent(filled: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Rows or columns (n, side) -> the share from the first to the last filled (n,)."""
    side = filled.shape[1]
    first, last = filled.argmax(axis=1), side - filled[:, ::-1].argmax(axis=1)
    return np.where(filled.any(axis=1), (last - first) / side, 0.0)
