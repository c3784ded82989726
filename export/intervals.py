"""The ratio of two medians with a 95 % bootstrap interval, from samples that were taken in the same rounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

RESAMPLES = 1000


@dataclass(frozen=True)
class Ratio:
    """The ratio of two medians, and the ends of its 95 % interval."""

    ratio: float
    low: float
    high: float


def ratio_of_rounds(numerator: Sequence[float], denominator: Sequence[float]) -> Ratio:
    """The ratio of the medians of two contestants, whose samples with the same index are of the same round.

    Resamples rounds, not samples, because a slow round is slow for both contestants; and blocks of n^(1/3) neighbouring
    rounds, because a slow round has slow neighbours. Seeded. Raises ValueError if the numbers of samples differ or are
    0.
    Kunsch, "The Jackknife and the Bootstrap for General Stationary Observations", 1989; circular, percentiles.
    """
    upper, lower = (np.asarray(samples, np.float64) for samples in (numerator, denominator))
    rounds = len(upper)
    if rounds != len(lower) or not rounds:
        raise ValueError(f"ratio: expected samples of the same rounds, found {rounds} and {len(lower)}")
    drawn = blocks(np.random.default_rng(0), rounds, RESAMPLES)
    ratios = np.median(upper[drawn], axis=1) / np.median(lower[drawn], axis=1)
    low, high = np.percentile(ratios, (2.5, 97.5))
    return Ratio(float(np.median(upper) / np.median(lower)), float(low), float(high))


def blocks(generator: np.random.Generator, rounds: int, resamples: int) -> NDArray[np.int64]:
    """Indices int64 (resamples, rounds) of drawn rounds, in blocks of rounds^(1/3) neighbours."""
    block = round(rounds ** (1 / 3))
    starts = generator.integers(rounds, size=(resamples, -(-rounds // block)))
    places: NDArray[np.int64] = (starts[..., None] + np.arange(block)) % rounds
    return places.reshape(resamples, -1)[:, :rounds]
