"""How time is taken: contestants in interleaved rounds, so that a drift of the machine hits all alike.

In: functions that each do one inference and return when it is done. Out: raw durations in nanoseconds, and their
percentiles.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

MIN_ROUNDS = 3
QUICK_NS = 200_000_000
SETTLE_S = 0.02  # thread pools spin a little after their work; the next contestant must not pay for it


@dataclass(frozen=True)
class Durations:
    """Samples of one contestant in nanoseconds, in the order taken."""

    samples_ns: tuple[int, ...]

    def percentile_ms(self, percent: float) -> float:
        """The percentile of the samples in milliseconds (linear between neighbours)."""
        return float(np.percentile(self.samples_ns, percent)) / 1e6


def time_interleaved(
    contestants: Mapping[str, Callable[[], object]],
    budget_s: float,
    on_round: Callable[[float], None],
    min_rounds: int = MIN_ROUNDS,
) -> dict[str, Durations]:
    """Times A B C A B C … for about `budget_s` seconds, and `min_rounds` at least, after one round of warm-up.

    A quick contestant first runs untimed at each turn of its own: it would otherwise pay for the caches that the slow
    ones have emptied, which fill theirs themselves. `on_round` is called with the share of the budget that is spent.
    """
    quick = {name for name, run in contestants.items() if _time_ns(run) < QUICK_NS}
    samples: dict[str, list[int]] = {name: [] for name in contestants}
    start, rounds = time.perf_counter(), 0
    while rounds < min_rounds or time.perf_counter() - start < budget_s:
        for name, run in contestants.items():
            time.sleep(SETTLE_S)
            if name in quick:
                run()
            samples[name].append(_time_ns(run))
        rounds += 1
        on_round(min(rounds / min_rounds, (time.perf_counter() - start) / budget_s, 1.0))
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
