"""Times candidates in interleaved rounds, so a drift of the machine affects all candidates equally.

In a round each candidate has a turn of one or more calls. Adds to `export/interleaved.py`: untimed calls before a
turn, rounds that do not count, progress, and the finished rounds after Ctrl-C.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from types import MappingProxyType
from typing import Any

import click
import numpy as np

from benchmarks.measure.progress import note, share_bar
from export.interleaved import Schedule, time_ns, turn_ns
from export.intervals import Ratio, ratio_of_rounds

MIN_ROUNDS = 3
QUICK_NS = 200_000_000  # a candidate with shorter calls gets an untimed call before its turn
STABLE_ROUNDS = 7  # an interval from fewer rounds says little
STABLE_WIDTH = 0.1  # of the interval, relative to the ratio
STATE_WIDTH = 1.15  # rounds whose times differ by a larger factor are of two states; see in_quickest_state
SETTLE_S = 0.02  # thread pools spin briefly after their work; that must not slow the next candidate
MOST_ROUNDS = 10**9  # of any measurement, even where its minimum is higher; tests set a few


@dataclass(frozen=True)
class Durations:
    """The times of a candidate.

    `samples_ns`: the median call of each round, for ratios. `calls_ns`: every call, if a round has several calls; else
    empty. `slower_rounds`: how many further rounds were left out because the machine was slower in them.
    """

    samples_ns: tuple[int, ...]
    calls_ns: tuple[int, ...] = ()
    slower_rounds: int = 0

    def percentile_ms(self, percent: float) -> float:
        """A percentile of single calls."""
        return float(np.percentile(self.calls_ns or self.samples_ns, percent)) / 1e6

    def percentiles(self, *percents: int) -> dict[str, float]:
        return {f"p{percent}_ms": self.percentile_ms(percent) for percent in percents}

    def row(self) -> dict[str, Any]:
        """The fields in a row of a result."""
        rounds = {"slower_rounds": self.slower_rounds, "samples_ns": list(self.samples_ns)}
        return {**self.percentiles(50, 90, 99), **rounds}


@dataclass(frozen=True)
class Protocol:
    """How rounds are run, and which rounds count.

    Before the first round all candidates run for `load_s`. Before a turn there are `settle_s` of sleep. With `refill` a
    quick candidate then gets an untimed call, because slow candidates evict the caches. A turn has a call, and further
    calls until `turn_s` have passed. A round counts if `accept()` is true after each of its turns; `ended(counts)` is
    called after the round. `one_state`: only rounds in the machine's quickest state count.
    """

    settle_s: float = SETTLE_S
    refill: bool = True
    load_s: float = 0.0
    turn_s: float = 0.0
    accept: Callable[[], bool] = lambda: True
    ended: Callable[[bool], None] = lambda counts: None
    one_state: bool = True


# Turns of 50 ms give narrow intervals soon. The median interval of six ratios was 0.07 and 0.16 wide after 75 and 139
# rounds of single calls of 0.1 to 1 ms, but 0.03 and 0.04 wide after 7 and 15 rounds of such turns.
ON_A_CPU = Protocol(turn_s=0.05)
# A GPU's clock rises under load and falls in a sleep.
ON_A_GPU = Protocol(settle_s=0.0, refill=False, load_s=2.0, turn_s=0.1, one_state=False)
MAX_REFUSED = 30  # rounds


class Slowed(click.ClickException):
    """The device slowed itself down in every round."""


def ratio_with_interval(numerator: Durations, denominator: Durations) -> Ratio:
    """The ratio of two candidates' samples of the same rounds. Raises ValueError if their numbers differ or are 0."""
    return ratio_of_rounds(numerator.samples_ns, denominator.samples_ns)


def in_quickest_state(samples_ns: Sequence[Sequence[int]]) -> list[int]:
    """Indices of the rounds in which the machine was in its quickest state.

    `samples_ns`: for each candidate, a value for each round. A state counts if it held for a third of the rounds, and
    for STABLE_ROUNDS.

    The cores of a shared machine may work as one for seconds to minutes. In 21 rounds of 76 candidates, the median
    candidate took 1.3 times as long in nine rounds as in the others: PyTorch 1.3 times, quick graphs 1.9 times. So no
    ratio held for both states. Within a state the median candidate differs by 3 %.
    """
    times_ns = np.asarray(samples_ns, np.float64)  # (candidates, rounds)
    slowness = np.median(times_ns / np.median(times_ns, axis=1, keepdims=True), axis=0)  # (rounds,)
    fewest = min(len(slowness), max(STABLE_ROUNDS, len(slowness) // 3))
    indices: list[int] = np.flatnonzero(slowness <= STATE_WIDTH * np.sort(slowness)[fewest - 1]).tolist()
    return indices


def is_stable(durations: Durations, baseline: Durations) -> bool:
    """Whether the interval of the ratio to `baseline` is narrow; for the baseline itself, that of its median."""
    if len(durations.samples_ns) < STABLE_ROUNDS:
        return False
    if durations == baseline:
        baseline = Durations((1,) * len(durations.samples_ns))
    ratio = ratio_with_interval(durations, baseline)
    return ratio.high - ratio.low <= STABLE_WIDTH * ratio.ratio


def time_interleaved(
    candidates: Mapping[str, Callable[[], object]],
    budget_s: float,
    title: str = "",
    min_rounds: int = MIN_ROUNDS,
    enough: Callable[[Mapping[str, Durations]], bool] = lambda measured: False,
    warm_up_ns: Mapping[str, int] = MappingProxyType({}),
    protocol: Protocol = ON_A_CPU,
    use: Callable[[dict[str, Durations]], object] = lambda measured: None,
) -> dict[str, Durations]:
    """Times A B C A B C … after a warm-up round: `min_rounds`, and more while the next round fits into `budget_s`.

    Stops early once `enough(measured)` is true. `warm_up_ns`: how long the warm-up of candidates took that are warm
    already; the others get a call. `use` gets what is returned; at Ctrl-C the finished rounds, if there are any. Raises
    Slowed if `protocol` refuses all rounds.
    """
    if not candidates:
        use({})
        return {}
    cold = {name: time_ns(run) for name, run in candidates.items() if name not in warm_up_ns}
    warm_up = {**warm_up_ns, **cold}
    quick = {name for name, took_ns in warm_up.items() if took_ns < QUICK_NS and protocol.refill}
    schedule = Schedule(min(min_rounds, MOST_ROUNDS), budget_s, MOST_ROUNDS)
    rounds = _Turns(candidates, quick, protocol)
    least_s = schedule.least * rounds.expected_s(warm_up)
    if title:
        least, most = f"{schedule.least} rounds take about {least_s:.1f} s", f"at most {max(least_s, budget_s):.0f} s"
        note(f"{title}: {len(candidates)} candidates, {least}; {most}")
    _keep_busy(candidates, protocol.load_s)
    start, next_check = time.perf_counter(), schedule.least
    with share_bar(title) as show:
        try:
            while schedule.goes_on(rounds.counted, time.perf_counter() - start):
                if not rounds.add():
                    if rounds.refused < MAX_REFUSED:
                        continue
                    note(f"{title}: {MAX_REFUSED} rounds refused, the device slows itself down")
                    break
                share_s = (time.perf_counter() - start) / max(budget_s, least_s)
                show(min(1.0, max(share_s, rounds.counted / schedule.most)))
                if rounds.counted >= next_check:
                    next_check = -(-rounds.counted * 5 // 4)
                    if enough(rounds.durations()):
                        break
        except KeyboardInterrupt:
            if rounds.counted:
                use(rounds.durations())
            raise
    if not rounds.counted:
        raise Slowed(f"{title}: expected rounds at full speed, found the device slowed down in all")
    use(measured := rounds.durations())
    return measured


class _Turns:
    """The turns of the rounds that count. `counted`, `refused`: numbers of rounds."""

    def __init__(
        self, candidates: Mapping[str, Callable[[], object]], quick: Container[str], protocol: Protocol
    ) -> None:
        self._candidates, self._quick, self._protocol = candidates, quick, protocol
        self._turns: dict[str, list[list[int]]] = {name: [] for name in candidates}
        self.counted = self.refused = 0

    def expected_s(self, calls_ns: Mapping[str, int]) -> float:
        """Seconds of a round, if the calls of the candidates take `calls_ns`."""
        protocol = self._protocol
        return sum(
            max(took_ns / 1e9, protocol.turn_s) * (1 + (name in self._quick)) + protocol.settle_s
            for name, took_ns in calls_ns.items()
        )

    def add(self) -> bool:
        """Runs a round. Returns whether it counts."""
        turns_ns, counts = dict[str, list[int]](), True
        for name, run in self._candidates.items():
            time.sleep(self._protocol.settle_s)
            if name in self._quick:
                run()
            turns_ns[name] = turn_ns(run, self._protocol.turn_s)
            counts = self._protocol.accept() and counts
        self._protocol.ended(counts)
        if not counts:
            self.refused += 1
            return False
        for name, calls_ns in turns_ns.items():
            self._turns[name].append(calls_ns)
        self.counted += 1
        return True

    def durations(self) -> dict[str, Durations]:
        """Durations of the finished rounds alone, even if Ctrl-C came while the turns of a round were stored."""
        measured = {name: _durations(turns[: self.counted]) for name, turns in self._turns.items()}
        if not self._protocol.one_state or self.counted <= STABLE_ROUNDS:
            return measured
        quickest = in_quickest_state([durations.samples_ns for durations in measured.values()])
        slower = self.counted - len(quickest)
        return {
            name: replace(_durations([turns[index] for index in quickest]), slower_rounds=slower)
            for name, turns in self._turns.items()
        }


def _durations(turns: Sequence[Sequence[int]]) -> Durations:
    """`turns`: for each round, the times of its calls in ns."""
    calls_ns = tuple(chain(*turns)) if any(len(turn) > 1 for turn in turns) else ()
    return Durations(tuple(int(np.median(turn)) for turn in turns), calls_ns)


def _keep_busy(candidates: Mapping[str, Callable[[], object]], seconds: float) -> None:
    begin = time.perf_counter()
    while time.perf_counter() < begin + seconds:
        for run in candidates.values():
            run()
