"""How the training photos look: things on a dark or a light background, and how much of the frame they fill.

In: images uint8 (n, C, H, W). Out: the fields `background` and `fill` of a configuration. Clients compare users'
pictures with them: a model of garments on black takes a product photo on white for a bag.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.looks import DARK, LIGHT, border_levels, fills

SHARE = 0.99  # of the pictures must have the same kind of border
LEAST = 0.5  # percent of the pictures fill less than `fill`
MEASURED = 4000  # pictures, evenly chosen


def looks(images: NDArray[np.uint8]) -> dict[str, Any]:
    """`background` and `fill`; empty if the backgrounds differ."""
    chosen = images[:: -(-len(images) // MEASURED)]
    level = border_levels(chosen)
    dark, light = float((level < DARK).mean()), float((level > LIGHT).mean())
    if max(dark, light) < SHARE:
        return {}
    least = float(np.percentile(fills(chosen), LEAST))
    return {"background": "dark" if dark > light else "light", "fill": round(least, 2)}
