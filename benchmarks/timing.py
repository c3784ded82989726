"""How time is taken: contestants in interleaved rounds, so that a drift of the machine hits all alike.

In: functions that each do one inference and return when it is done. Out: raw durations in nanoseconds, and their
percentiles.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

MIN_ROUNDS = 3
QUICK_NS = 200_000_000
RESAMPLES = 1000
STABLE_ROUNDS = 7  # the interval of fewer says little
STABLE_WIDTH = 0.1  # of the interval, relative to the ratio
SETTLE_S = 0.02  # thread pools spin a little after their work; the next contestant must not pay for it


@dataclass(frozen=True)
class Durations:
    """Samples of one contestant in nanoseconds, in the order taken."""

    samples_ns: tuple[int, ...]

    def percentile_ms(self, percent: float) -> float:
        """The percentile of the samples in milliseconds (linear between neighbours)."""
        return float(np.percentile(self.samples_ns, percent)) / 1e6


@dataclass(frozen=True)
class Ratio:
    """How many times the median of one contestant is that of another, and the bootstrap interval of that, 95 %."""

    ratio: float
    low: float
    high: float


def ratio_with_interval(numerator: Durations, denominator: Durations) -> Ratio:
    """The ratio of the two medians, with its interval; both were taken in the same rounds.

    Whole rounds are drawn again, a run of n^(1/3) neighbours at a time: what slows a round down slows down both
    contestants, and the rounds beside it. Seeded. Raises ValueError where the numbers of samples differ or are 0.
    Kunsch, "The Jackknife and the Bootstrap for General Stationary Observations", 1989; circular, percentiles.
    """
    above, below = (np.asarray(durations.samples_ns, np.float64) for durations in (numerator, denominator))
    rounds = len(above)
    if rounds != len(below) or not rounds:
        raise ValueError(f"ratio: expected samples of the same rounds, found {rounds} and {len(below)}")
    block = round(rounds ** (1 / 3))
    starts = np.random.default_rng(0).integers(rounds, size=(RESAMPLES, -(-rounds // block)))
    drawn = ((starts[..., None] + np.arange(block)) % rounds).reshape(RESAMPLES, -1)[:, :rounds]
    ratios = np.median(above[drawn], axis=1) / np.median(below[drawn], axis=1)
    low, high = np.percentile(ratios, (2.5, 97.5))
    return Ratio(float(np.median(above) / np.median(below)), float(low), float(high))


def is_stable(durations: Durations, baseline: Durations) -> bool:
    """Whether the interval of the ratio to `baseline`, or of its own median where it is the baseline, is narrow."""
    if len(durations.samples_ns) < STABLE_ROUNDS:
        return False
    if durations == baseline:
        baseline = Durations((1,) * len(durations.samples_ns))
    found = ratio_with_interval(durations, baseline)
    return found.high - found.low <= STABLE_WIDTH * found.ratio


def time_interleaved(
    contestants: Mapping[str, Callable[[], object]],
    budget_s: float,
    on_round: Callable[[float], None],
    min_rounds: int = MIN_ROUNDS,
    enough: Callable[[Mapping[str, Durations]], bool] = lambda measured: False,
    warm_up_ns: Mapping[str, int] = MappingProxyType({}),
) -> dict[str, Durations]:
    """Times A B C A B C … for about `budget_s` seconds, and `min_rounds` at least, after one round of warm-up.

    It ends earlier where the samples taken are `enough`, which is asked each time that they have grown by a quarter.
    Those in `warm_up_ns` are warm already and took that long. A quick contestant first runs untimed at each turn of its
    own: it would otherwise pay for the caches that the slow ones have emptied, which fill theirs themselves. `on_round`
    is called with the share of the budget that is spent.
    """
    cold = {name: _time_ns(run) for name, run in contestants.items() if name not in warm_up_ns}
    quick = {name for name, took_ns in {**warm_up_ns, **cold}.items() if took_ns < QUICK_NS}
    samples: dict[str, list[int]] = {name: [] for name in contestants}
    start, rounds, next_question = time.perf_counter(), 0, min_rounds
    while rounds < min_rounds or time.perf_counter() - start < budget_s:
        for name, run in contestants.items():
            time.sleep(SETTLE_S)
            if name in quick:
                run()
            samples[name].append(_time_ns(run))
        rounds += 1
        on_round(min(rounds / min_rounds, (time.perf_counter() - start) / budget_s, 1.0))
        if rounds == next_question:
            if enough(_frozen(samples)):
                break
            next_question += -(-rounds // 4)
    return _frozen(samples)


def _frozen(samples: Mapping[str, list[int]]) -> dict[str, Durations]:
    return {name: Durations(tuple(taken)) for name, taken in samples.items()}


def _time_ns(run: Callable[[], object]) -> int:
    start = time.perf_counter_ns()
    run()
    return time.perf_counter_ns() - start


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns aligned by their widest cell; the first two to the left, the numbers to the right."""
    widths = [max(len(row[i]) for row in (header, *rows)) for i in range(len(header))]

    def line(cells: Sequence[str]) -> str:
        return "  ".join(
            c.ljust(w) if i < 2 else c.rjust(w) for i, (c, w) in enumerate(zip(cells, widths, strict=True))
        )

    return "\n".join((line(header), line(["-" * width for width in widths]), *map(line, rows)))
