"""How far a share of few pictures may lie from the true one. Wilson, "Probable Inference", JASA 22, 1927."""

from __future__ import annotations

import math

NORMAL = 1.959964  # standard deviations of a 95 % interval


def wilson(share: float, count: int) -> tuple[float, float]:
    """The 95 % interval of a share in [0, 1] that was measured on `count` pictures."""
    spread = NORMAL**2 / count
    centre = (share + spread / 2) / (1 + spread)
    reach = NORMAL / (1 + spread) * math.sqrt(share * (1 - share) / count + spread / (4 * count))
    return max(0.0, centre - reach), min(1.0, centre + reach)
