"""Interleaved timing: contestants take turns in rounds, so a drift of the machine hits all.

In: a turn of each contestant and a `Schedule`. Out: its times, a value a round. `export/intervals.py` has the ratio of
two contestants with its interval.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import TypeVar

Part = TypeVar("Part")


@dataclass(frozen=True)
class Schedule:
    """How long: `least` rounds, then rounds while the next fits into `seconds`, `most` in all."""

    least: int
    seconds: float
    most: float = math.inf

    def goes_on(self, rounds: int, elapsed_s: float) -> bool:
        """After so many finished rounds."""
        fits = elapsed_s * (rounds + 1) <= self.seconds * rounds
        return rounds < self.least or (rounds < self.most and fits)


def interleaved(turns: Sequence[Callable[[], float]], schedule: Schedule) -> list[list[float]]:
    """What the turns return, by contestant and round. Every other round has the reverse order."""
    taken: list[list[float]] = [[] for _ in turns]
    places = range(len(turns))
    begin, rounds = time.perf_counter(), 0
    while schedule.goes_on(rounds, time.perf_counter() - begin):
        for place in reversed(places) if rounds % 2 else places:
            taken[place].append(turns[place]())
        rounds += 1
    return taken


def shared(pool: Executor, workers: Sequence[Callable[[Part], object]], parts: Sequence[Part]) -> Callable[[], None]:
    """A run in which the workers share the parts, each in a thread of its own."""

    def share(worker: int) -> None:
        for part in parts[worker :: len(workers)]:
            workers[worker](part)

    def run() -> None:
        list(pool.map(share, range(len(workers))))

    return run


def turn_ns(run: Callable[[], object], turn_s: float = 0.0) -> list[int]:
    """The times of as many calls as take `turn_s`, at least one."""
    calls_ns = [time_ns(run)]
    took_ns = calls_ns[0]
    while took_ns < 1e9 * turn_s:
        calls_ns.append(time_ns(run))
        took_ns += calls_ns[-1]
    return calls_ns


def time_ns(run: Callable[[], object]) -> int:
    start = time.perf_counter_ns()
    run()
    return time.perf_counter_ns() - start
