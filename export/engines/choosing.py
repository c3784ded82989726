"""Chooses a network's engine, precision and sharing of the cores by measurement on this machine.

In: the float32 file, its int8 form, a labelled dataset. Out: a `Choice`.
"""

from __future__ import annotations

import math
import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from export.engines.openvino_engine import has_bfloat16, openvino_classifier
from export.equivalence import Classifier, Images, onnx_classifier
from export.errors import ExportError, Unavailable
from export.precision import accuracy
from models.data import Dataset

Goal = Literal["latency", "throughput"]
EngineName = Literal["onnxruntime", "openvino"]
Numbers = Literal["fp32", "bf16", "int8"]

IMAGES_A_CALL: Mapping[Goal, int] = {"latency": 1, "throughput": 64}
CALLS = 16  # per timed sample, at least
LEAST_ROUNDS = 5
SECONDS = 15.0  # for all candidates
NORMAL_95 = 1.96


@dataclass(frozen=True)
class Candidate:
    """`threads` per instance; 0: all cores."""

    engine: EngineName
    precision: Numbers
    instances: int = 1
    threads: int = 0

    @property
    def complexity(self) -> tuple[int, ...]:
        kinds = [(each.engine, each.precision) for each in (BASELINE, *OTHERS)]
        return kinds.index((self.engine, self.precision)), self.instances, self.threads

    def __str__(self) -> str:
        threads = "all" if self.threads == 0 else str(self.threads)
        return f"{self.engine}, {self.precision}, instances: {self.instances}, threads of each: {threads}"


BASELINE = Candidate("onnxruntime", "fp32")  # of accuracy
OTHERS = (  # ONNX Runtime has no CPU kernels for bfloat16
    Candidate("onnxruntime", "int8"),
    Candidate("openvino", "fp32"),
    Candidate("openvino", "bf16"),
    Candidate("openvino", "int8"),
)


@dataclass(frozen=True)
class Row:
    """`of_quickest`: 95 % interval of the time, as a share of the quickest row's."""

    candidate: Candidate
    accuracy: float | None = None
    images_per_s: float | None = None
    call_ms: float | None = None
    of_quickest: tuple[float, float] | None = None
    left_out: str | None = None

    def as_json(self) -> dict[str, Any]:
        return asdict(self.candidate) | {name: value for name, value in vars(self).items() if name != "candidate"}


@dataclass(frozen=True)
class Choice:
    """Rows quickest first, then the rejected rows."""

    goal: Goal
    max_drop_points: float
    rows: tuple[Row, ...]

    @property
    def best(self) -> Row:
        """The simplest of the rows whose interval includes the quickest's time."""
        level = [row for row in self.rows if row.of_quickest and row.of_quickest[0] <= 1]
        return min(level, key=lambda row: row.candidate.complexity)

    @property
    def reason(self) -> str | None:
        """Why the best is not the quickest."""
        quickest, best = self.rows[0], self.best
        if best is quickest or best.of_quickest is None:
            return None
        low, high = best.of_quickest
        return f"simpler than {quickest.candidate}, and as fast: {low:.2f} to {high:.2f} times its time"

    def manifest(self) -> dict[str, Any]:
        return {
            "for": self.goal,
            "max_accuracy_drop": self.max_drop_points,
            "chosen": self.best.as_json(),
            "reason": self.reason,
            "measured": [row.as_json() for row in self.rows],
        }


def choose(
    files: Mapping[Numbers, bytes | ExportError], dataset: Dataset, goal: Goal, max_drop_points: float
) -> Choice:
    """`files`: fp32 and int8, or why int8 was refused."""
    base = accuracy(_start(files, BASELINE), dataset)
    rows = [Row(BASELINE, base)]
    for candidate in OTHERS:
        try:
            share = accuracy(_start(files, candidate), dataset)
        except ExportError as reason:
            rows.append(Row(candidate, left_out=str(reason)))
            continue
        row = Row(candidate, share)
        if not 100 * (base - share) <= max_drop_points:
            drop = f"accuracy falls by {100 * (base - share):.2f} points, {max_drop_points:g} are allowed"
            row = replace(row, left_out=drop)
        rows.append(row)
    contestants = [replace(row, candidate=each) for row in rows if not row.left_out for each in _sharings(row, goal)]
    timed = _timed(files, contestants, dataset.test_images, goal)
    by_speed = sorted(timed, key=lambda row: -(row.images_per_s or 0.0))
    return Choice(goal, max_drop_points, (*by_speed, *(row for row in rows if row.left_out)))


def _sharings(row: Row, goal: Goal) -> Iterator[Candidate]:
    yield row.candidate
    if (cores := _cores()) > 1:
        yield replace(row.candidate, instances=1 if goal == "latency" else cores, threads=1)


def _timed(files: Mapping[Numbers, bytes | ExportError], rows: Sequence[Row], images: Images, goal: Goal) -> list[Row]:
    """In interleaved rounds: drift affects all alike."""
    size = min(IMAGES_A_CALL[goal], len(images))
    counts = [_calls(row.candidate) for row in rows]
    batches = [images[start % (len(images) - size + 1) :][:size] for start in range(0, max(counts) * size, size)]
    with ThreadPoolExecutor(max(row.candidate.instances for row in rows)) as pool:
        runs = [
            _runner(pool, [_start(files, row.candidate) for _ in range(row.candidate.instances)], batches[:calls])
            for row, calls in zip(rows, counts, strict=True)
        ]
        samples = _samples(runs)
    medians = [statistics.median(taken) for taken in samples]
    seconds_an_image = [took_s / calls for took_s, calls in zip(medians, counts, strict=True)]
    quickest = seconds_an_image.index(min(seconds_an_image))
    return [
        replace(
            row,
            images_per_s=calls * size / took_s,
            call_ms=1000 * took_s * row.candidate.instances / calls,
            of_quickest=_interval(
                [a / calls * counts[quickest] / b for a, b in zip(taken, samples[quickest], strict=True)]
            ),
        )
        for row, calls, took_s, taken in zip(rows, counts, medians, samples, strict=True)
    ]


def _interval(ratios: Sequence[float]) -> tuple[float, float]:
    """Of the median at 95 %, from the order of the values alone; of few values their range."""
    ordered, count = sorted(ratios), len(ratios)
    outside = max(0, math.floor((count - NORMAL_95 * math.sqrt(count)) / 2))
    return ordered[outside], ordered[count - 1 - outside]


def _samples(runs: Sequence[Callable[[], None]]) -> list[list[float]]:
    """Seconds of each run, a value a round."""
    samples: list[list[float]] = [[] for _ in runs]
    for run in runs:
        run()  # the first calls allocate
    end, rounds = time.perf_counter() + SECONDS, 0
    while rounds < LEAST_ROUNDS or time.perf_counter() < end:
        for run, taken in zip(runs, samples, strict=True):
            start = time.perf_counter()
            run()
            taken.append(time.perf_counter() - start)
        rounds += 1
    return samples


def _calls(candidate: Candidate) -> int:
    """A multiple of the instances: none waits for the last call of another."""
    return math.ceil(CALLS / candidate.instances) * candidate.instances


def _runner(pool: Executor, workers: Sequence[Classifier], batches: Sequence[Images]) -> Callable[[], None]:
    def share(worker: int) -> None:
        for batch in batches[worker :: len(workers)]:
            workers[worker](batch)

    def run() -> None:
        list(pool.map(share, range(len(workers))))

    return run


def _start(files: Mapping[Numbers, bytes | ExportError], candidate: Candidate) -> Classifier:
    data = _bytes(files["int8" if candidate.precision == "int8" else "fp32"])
    threads = candidate.threads or _cores()
    if candidate.engine == "onnxruntime":
        return onnx_classifier(data, threads)
    if candidate.precision == "bf16" and not has_bfloat16():
        raise Unavailable("this CPU has no bfloat16")
    return openvino_classifier(data, candidate.precision == "bf16", threads)


def _bytes(file: bytes | ExportError) -> bytes:
    if isinstance(file, ExportError):
        raise file
    return file


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
