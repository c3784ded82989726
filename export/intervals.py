"""The ratio of two medians with a 95 % interval, from samples of the same rounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

RESAMPLES = 1000


@dataclass(frozen=True)
class Ratio:
    """Of two medians, with a 95 % bootstrap interval."""

    ratio: float
    low: float
    high: float


def ratio_of_rounds(numerator: Sequence[float], denominator: Sequence[float]) -> Ratio:
    """Resamples whole rounds, in runs of n^(1/3) neighbours: a slow round is slow for both candidates and for its
    neighbours.

    Seeded. Raises ValueError if the numbers of samples differ or are 0.
    Kunsch, "The Jackknife and the Bootstrap for General Stationary Observations", 1989; circular, percentiles.
    """
    above, below = (np.asarray(samples, np.float64) for samples in (numerator, denominator))
    rounds = len(above)
    if rounds != len(below) or not rounds:
        raise ValueError(f"ratio: expected samples of the same rounds, found {rounds} and {len(below)}")
    drawn = blocks(np.random.default_rng(0), rounds, RESAMPLES)
    ratios = np.median(above[drawn], axis=1) / np.median(below[drawn], axis=1)
    low, high = np.percentile(ratios, (2.5, 97.5))
    return Ratio(float(np.median(above) / np.median(below)), float(low), float(high))


def blocks(generator: np.random.Generator, rounds: int, resamples: int) -> NDArray[np.int64]:
    """Places (resamples, rounds) of drawn rounds, in runs of rounds^(1/3) neighbours."""
    block = round(rounds ** (1 / 3))
    starts = generator.integers(rounds, size=(resamples, -(-rounds // block)))
    places: NDArray[np.int64] = (starts[..., None] + np.arange(block)) % rounds
    return places.reshape(resamples, -1)[:, :rounds]
