"""Chooses a network's engine, precision and sharing of the cores by measurement on this machine.

In: the float32 file, its int8 form, a labelled dataset. Out: a `Choice`.
"""

from __future__ import annotations

import math
import os
import statistics
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, Literal, get_args

from export.engines.openvino_engine import has_bfloat16, openvino_classifier
from export.equivalence import Classifier, Images, onnx_classifier
from export.errors import ExportError, Unavailable
from export.interleaved import Schedule, interleaved, shared, time_ns
from export.intervals import Ratio, ratio_of_rounds
from export.precision import accuracy
from export.precision_table import PRECISIONS, Precision, file_precision
from models.data import Dataset

Goal = Literal["latency", "throughput"]
EngineName = Literal["onnxruntime", "openvino"]
Files = Mapping[Precision, bytes | ExportError]
"""ONNX files by precision, or why a file was refused."""

IMAGES_A_CALL: Mapping[Goal, int] = {"latency": 1, "throughput": 64}
CALLS = 16  # per timed sample, at least
LEAST_ROUNDS = 5
SECONDS = 15.0  # for all settings


@dataclass(frozen=True)
class Setting:
    """How a server runs a file. `threads` per instance; 0: all cores."""

    engine: EngineName
    precision: Precision
    instances: int = 1
    threads: int = 0

    @property
    def complexity(self) -> tuple[int, ...]:
        kinds = [(each.engine, each.precision) for each in (BASELINE, *OTHERS)]
        return kinds.index((self.engine, self.precision)), self.instances, self.threads

    def __str__(self) -> str:
        threads = "all" if self.threads == 0 else str(self.threads)
        return f"{self.engine}, {self.precision}, instances: {self.instances}, threads of each: {threads}"


BASELINE = Setting("onnxruntime", "fp32")  # of accuracy
OTHERS = tuple(
    setting
    for engine in get_args(EngineName)
    for name, row in PRECISIONS.items()
    if engine in row.cpu and (setting := Setting(engine, name)) != BASELINE
)


@dataclass(frozen=True)
class Row:
    """`of_quickest`: 95 % interval of the time, as a share of the quickest row's."""

    setting: Setting
    accuracy: float | None = None
    images_per_s: float | None = None
    call_ms: float | None = None
    of_quickest: tuple[float, float] | None = None
    left_out: str | None = None

    def as_json(self) -> dict[str, Any]:
        return asdict(self.setting) | {name: value for name, value in vars(self).items() if name != "setting"}


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
        return min(level, key=lambda row: row.setting.complexity)

    @property
    def reason(self) -> str | None:
        """Why the best is not the quickest."""
        quickest, best = self.rows[0], self.best
        if best is quickest or best.of_quickest is None:
            return None
        low, high = best.of_quickest
        return f"simpler than {quickest.setting}, and as fast: {low:.2f} to {high:.2f} times its time"

    def manifest(self) -> dict[str, Any]:
        return {
            "for": self.goal,
            "max_accuracy_drop": self.max_drop_points,
            "chosen": self.best.as_json(),
            "reason": self.reason,
            "measured": [row.as_json() for row in self.rows],
        }


def choose(files: Files, dataset: Dataset, goal: Goal, max_drop_points: float) -> Choice:
    """`files`: fp32 and int8, or why int8 was refused."""
    base = accuracy(_start(files, BASELINE), dataset)
    rows = [Row(BASELINE, base)]
    for setting in OTHERS:
        try:
            share = accuracy(_start(files, setting), dataset)
        except ExportError as reason:
            rows.append(Row(setting, left_out=str(reason)))
            continue
        row = Row(setting, share)
        if not 100 * (base - share) <= max_drop_points:
            drop = f"accuracy falls by {100 * (base - share):.2f} points, {max_drop_points:g} are allowed"
            row = replace(row, left_out=drop)
        rows.append(row)
    contestants = [replace(row, setting=each) for row in rows if not row.left_out for each in _sharings(row, goal)]
    timed = _timed(files, contestants, dataset.test_images, goal)
    by_speed = sorted(timed, key=lambda row: -(row.images_per_s or 0.0))
    return Choice(goal, max_drop_points, (*by_speed, *(row for row in rows if row.left_out)))


def _sharings(row: Row, goal: Goal) -> Iterator[Setting]:
    yield row.setting
    if (cores := _cores()) > 1:
        yield replace(row.setting, instances=1 if goal == "latency" else cores, threads=1)


def _timed(files: Files, rows: Sequence[Row], images: Images, goal: Goal) -> list[Row]:
    """In interleaved rounds: drift affects all alike."""
    size = min(IMAGES_A_CALL[goal], len(images))
    counts = [_calls(row.setting) for row in rows]
    batches = [images[start % (len(images) - size + 1) :][:size] for start in range(0, max(counts) * size, size)]
    with ThreadPoolExecutor(max(row.setting.instances for row in rows)) as pool:
        runs = [
            shared(pool, [_start(files, row.setting) for _ in range(row.setting.instances)], batches[:calls])
            for row, calls in zip(rows, counts, strict=True)
        ]
        for run in runs:
            run()  # the first calls allocate
        samples_ns = interleaved([partial(time_ns, run) for run in runs], Schedule(LEAST_ROUNDS, SECONDS))
    calls_ns = [[taken / calls for taken in each] for each, calls in zip(samples_ns, counts, strict=True)]
    medians_ns = [statistics.median(each) for each in calls_ns]
    quickest = calls_ns[medians_ns.index(min(medians_ns))]
    return [
        replace(
            row,
            images_per_s=1e9 * size / call_ns,
            call_ms=call_ns * row.setting.instances / 1e6,
            of_quickest=_bounds(ratio_of_rounds(each, quickest)),
        )
        for row, call_ns, each in zip(rows, medians_ns, calls_ns, strict=True)
    ]


def _bounds(ratio: Ratio) -> tuple[float, float]:
    return ratio.low, ratio.high


def _calls(setting: Setting) -> int:
    """A multiple of the instances: none waits for the last call of another."""
    return math.ceil(CALLS / setting.instances) * setting.instances


def _start(files: Files, setting: Setting) -> Classifier:
    data = _bytes(files[file_precision(setting.precision, setting.engine)])
    threads = setting.threads or _cores()
    if setting.engine == "onnxruntime":
        return onnx_classifier(data, threads)
    if setting.precision == "bf16" and not has_bfloat16():
        raise Unavailable("this CPU has no bfloat16")
    return openvino_classifier(data, setting.precision == "bf16", threads)


def _bytes(file: bytes | ExportError) -> bytes:
    if isinstance(file, ExportError):
        raise file
    return file


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
