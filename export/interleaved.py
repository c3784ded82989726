"""Interleaved timing: contestants take turns in rounds, so a drift of the machine affects all of them.

In: a function for each contestant, which times a turn, and a `Schedule`. Out: for each contestant the time in every
round. `export/intervals.py` makes the ratio of two contestants and its interval from them.
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
    """How many rounds: at least `least`, then more while the next fits into `seconds`, at most `most`."""

    least: int
    seconds: float
    most: float = math.inf

    def goes_on(self, rounds: int, elapsed_s: float) -> bool:
        """Whether another round follows, `rounds` finished rounds having taken `elapsed_s` seconds."""
        fits = elapsed_s * (rounds + 1) <= self.seconds * rounds
        return rounds < self.least or (rounds < self.most and fits)


def interleaved(turns: Sequence[Callable[[], float]], schedule: Schedule) -> list[list[float]]:
    """What the turns return: for each contestant a list with a value for every round.

    Every other round has the reverse order, so that no contestant always follows the same neighbour.
    """
    results: list[list[float]] = [[] for _ in turns]
    places = range(len(turns))
    begin, rounds = time.perf_counter(), 0
    while schedule.goes_on(rounds, time.perf_counter() - begin):
        for place in reversed(places) if rounds % 2 else places:
            results[place].append(turns[place]())
        rounds += 1
    return results


def shared(pool: Executor, workers: Sequence[Callable[[Part], object]], parts: Sequence[Part]) -> Callable[[], None]:
    """A function without arguments that processes all parts: worker i, in its own thread, takes every n-th from i."""

    def share(worker: int) -> None:
        for part in parts[worker :: len(workers)]:
            workers[worker](part)

    def run() -> None:
        list(pool.map(share, range(len(workers))))

    return run


def turn_ns(run: Callable[[], object], turn_s: float = 0.0) -> list[int]:
    """Times of repeated calls, in ns: calls until they have taken `turn_s` seconds together, at least one."""
    calls_ns = [time_ns(run)]
    total_ns = calls_ns[0]
    while total_ns < 1e9 * turn_s:
        calls_ns.append(time_ns(run))
        total_ns += calls_ns[-1]
    return calls_ns


def time_ns(run: Callable[[], object]) -> int:
    """Duration of a call, in ns."""
    start = time.perf_counter_ns()
    run()
    return time.perf_counter_ns() - start
