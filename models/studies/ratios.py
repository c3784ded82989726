"""Ratios of times, and gains.

With t the time of an epoch, r = t(ViT) / t(other), and g = 1 - 1/r is the saved share; r_t and g_t of training, r_v and
g_v of the test.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from models.studies.running import Trained


def ratio(times_s: Sequence[float], other_times_s: Sequence[float]) -> float:
    return median(times_s) / median(other_times_s)


def gain(r: float) -> float:
    return 1 - 1 / r


def compare(vits: Sequence[Trained], others: Sequence[Trained]) -> dict[str, Any]:
    """r and g over all epochs of the pairs; the range of r by pair.

    A run that diverged in its first epoch has no times: its pair does not count, and without pairs all is None.
    """
    timed = [pair for pair in zip(vits, others, strict=True) if all(one.series for one in pair)]
    compared: dict[str, Any] = {}
    for suffix, field in (("t", "training_time_s"), ("v", "test_time_s")):
        if not timed:
            compared |= {f"r_{suffix}": None, f"g_{suffix}": None, f"r_{suffix}_range": [None, None]}
            continue
        pairs = [tuple([getattr(epoch, field) for epoch in one.series] for one in pair) for pair in timed]
        own = [ratio(*pair) for pair in pairs]
        r = ratio(*([time_s for times_s in side for time_s in times_s] for side in zip(*pairs, strict=True)))
        compared |= {f"r_{suffix}": r, f"g_{suffix}": gain(r), f"r_{suffix}_range": [min(own), max(own)]}
    return compared
