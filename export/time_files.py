"""Times two ONNX files on the same drawn inputs, in interleaved rounds in ONNX Runtime."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import onnx_ir as ir

from export.compiler.proof.inputs import Feeds, draw, first_dimensions
from export.compiler.proof.runner import Runner, is_large
from export.interleaved import Schedule, interleaved, turn_ns
from export.intervals import Ratio, ratio_of_rounds

BATCHES = (1, 8)
SECONDS = 4.0
LEAST, MOST = 7, 200  # rounds
TURN_S = 0.01  # a file is called this long in a round, at least once
NOISE = 0.05  # a loss of speed below this share does not count


@dataclass(frozen=True)
class Timed:
    """Median times of a call of both files over `rounds` rounds, at some sizes of their inputs.

    `speed`: time before / time after. `packed`: whether ONNX Runtime copies weights into a faster layout.
    """

    sizes: Mapping[str, int]
    threads: int
    before_ms: float
    after_ms: float
    speed: Ratio
    rounds: int
    packed: bool = True

    @property
    def slower(self) -> bool:
        """Whether the second file is slower by more than noise."""
        return self.speed.high < 1 and self.speed.ratio < 1 - NOISE

    def __str__(self) -> str:
        at = ", ".join(f"{name}={size}" for name, size in self.sizes.items()) or "fixed sizes"
        threads = f"{self.threads} thread{'s' if self.threads > 1 else ''}"
        speed = f"{self.speed.ratio:.2f} times as fast (95 %: {self.speed.low:.2f} to {self.speed.high:.2f})"
        how = "" if self.packed else ", weights not packed"
        return f"{at}, {threads}{how}: {self.before_ms:.2f} -> {self.after_ms:.2f} ms, {speed}, {self.rounds} rounds"


def time_both(
    before: Path,
    after: Path,
    graph: ir.Graph,
    sizes: Mapping[str, int],
    batches: Sequence[int] = BATCHES,
    threads: int = 1,
) -> tuple[Timed, ...]:
    """A timing for each batch size; a single timing if no input has a batch dimension.

    `graph`: has the inputs of both files. `sizes`: of their free dimensions; the batch dimensions are overwritten.
    """
    batch_dimensions = first_dimensions(graph)
    drawn_sizes = [{**sizes, **dict.fromkeys(batch_dimensions, batch)} for batch in batches]
    if not batch_dimensions:
        drawn_sizes = [dict(sizes)]
    large = any(map(is_large, (before, after)))
    runners = [Runner(path, packed=True, threads=threads, large=large) for path in (before, after)]
    return tuple(_timed(runners, draw(graph, input_sizes), input_sizes, threads) for input_sizes in drawn_sizes)


def _timed(runners: Sequence[Runner], feeds: Feeds, sizes: Mapping[str, int], threads: int) -> Timed:
    for runner in runners:
        runner(feeds)  # the first calls allocate
    turns = [partial(_turn_ns, runner, feeds) for runner in runners]
    before_ns, after_ns = interleaved(turns, Schedule(LEAST, SECONDS, MOST))
    speed = ratio_of_rounds(before_ns, after_ns)
    before_ms, after_ms = (statistics.median(samples) / 1e6 for samples in (before_ns, after_ns))
    return Timed(sizes, threads, before_ms, after_ms, speed, len(before_ns), runners[0].packed)


def _turn_ns(runner: Runner, feeds: Feeds) -> float:
    return statistics.median(turn_ns(runner.call(feeds), TURN_S))
