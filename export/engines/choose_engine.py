"""Measures a network on this machine and chooses its engine, precision, instances and threads.

In: the float32 ONNX file, its int8 form, a labelled dataset. Out: a `Choice`: all measurements and the best setting.
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

from export.compare_logits import Classifier, Images, onnx_classifier
from export.engines.openvino_engine import has_bfloat16, openvino_classifier
from export.errors import ExportError, Unavailable
from export.interleaved import Schedule, interleaved, shared, time_ns
from export.intervals import ratio_of_rounds
from export.precision import accuracy
from export.precision_table import PRECISIONS, Precision, file_precision
from models.data import Dataset

Goal = Literal["latency", "throughput"]
EngineName = Literal["onnxruntime", "openvino"]
Files = Mapping[Precision, bytes | ExportError]
"""Precision -> the bytes of the ONNX file, or the error with which the conversion refused it."""

IMAGES_A_CALL: Mapping[Goal, int] = {"latency": 1, "throughput": 64}
CALLS = 16  # per timed sample, at least
LEAST_ROUNDS = 5
SECONDS = 15.0  # for all settings


@dataclass(frozen=True)
class Setting:
    """How a server runs a file. `instances`: copies of the model. `threads`: of an instance; 0: all cores."""

    engine: EngineName
    precision: Precision
    instances: int = 1
    threads: int = 0

    @property
    def complexity(self) -> tuple[int, ...]:
        """Sort key: the baseline's engine and precision come first, then fewer instances and threads."""
        kinds = [(setting.engine, setting.precision) for setting in (BASELINE, *ALTERNATIVES)]
        return kinds.index((self.engine, self.precision)), self.instances, self.threads

    def __str__(self) -> str:
        threads = "all" if self.threads == 0 else str(self.threads)
        return f"{self.engine}, {self.precision}, instances: {self.instances}, threads of each: {threads}"


BASELINE = Setting("onnxruntime", "fp32")  # its accuracy is the reference
ALTERNATIVES = tuple(
    setting
    for engine in get_args(EngineName)
    for name, row in PRECISIONS.items()
    if engine in row.cpu and (setting := Setting(engine, name)) != BASELINE
)


@dataclass(frozen=True)
class Row:
    """A setting and its measurement.

    `accuracy`: share of test images with the right class. `call_ms`: time of a call.
    `of_quickest`: 95 % interval of this row's time divided by the quickest row's. `left_out`: why it is rejected.
    """

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
    """`rows`: the quickest first, the rejected last. `max_drop_points`: allowed loss of accuracy, percentage points."""

    goal: Goal
    max_drop_points: float
    rows: tuple[Row, ...]

    @property
    def best(self) -> Row:
        """The simplest of the rows that are not measurably slower than the quickest row."""
        as_fast = [row for row in self.rows if row.of_quickest and row.of_quickest[0] <= 1]
        return min(as_fast, key=lambda row: row.setting.complexity)

    @property
    def reason(self) -> str | None:
        """Why the best row is not the quickest row; None if it is."""
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
    """Rejects engines and precisions that lose accuracy, then times the others with each sharing of the cores.

    `files`: of fp32 and int8. `max_drop_points`: allowed loss of test accuracy, percentage points.
    """
    baseline_accuracy = accuracy(_start(files, BASELINE), dataset)
    rows = [Row(BASELINE, baseline_accuracy)]
    for setting in ALTERNATIVES:
        try:
            setting_accuracy = accuracy(_start(files, setting), dataset)
        except ExportError as reason:
            rows.append(Row(setting, left_out=str(reason)))
            continue
        row, drop_points = Row(setting, setting_accuracy), 100 * (baseline_accuracy - setting_accuracy)
        if not drop_points <= max_drop_points:  # NaN fails too
            drop = f"accuracy falls by {drop_points:.2f} points, {max_drop_points:g} are allowed"
            row = replace(row, left_out=drop)
        rows.append(row)
    contestants = [
        replace(row, setting=setting) for row in rows if not row.left_out for setting in _sharings(row.setting, goal)
    ]
    timed = _timed(files, contestants, dataset.test_images, goal)
    by_speed = sorted(timed, key=lambda row: -(row.images_per_s or 0.0))
    return Choice(goal, max_drop_points, (*by_speed, *(row for row in rows if row.left_out)))


def _sharings(setting: Setting, goal: Goal) -> Iterator[Setting]:
    """An instance on all cores; and instances of a single thread: one for latency, else as many as cores."""
    yield setting
    if (cores := _cores()) > 1:
        yield replace(setting, instances=1 if goal == "latency" else cores, threads=1)


def _timed(files: Files, rows: Sequence[Row], images: Images, goal: Goal) -> list[Row]:
    """The rows with their times. Rounds are interleaved, so a drift of the machine affects all rows alike."""
    size = min(IMAGES_A_CALL[goal], len(images))
    counts = [_calls(row.setting.instances) for row in rows]
    batches = [images[start % (len(images) - size + 1) :][:size] for start in range(0, max(counts) * size, size)]
    with ThreadPoolExecutor(max(row.setting.instances for row in rows)) as pool:
        runs = [
            shared(pool, [_start(files, row.setting) for _ in range(row.setting.instances)], batches[:calls])
            for row, calls in zip(rows, counts, strict=True)
        ]
        for run in runs:
            run()  # the first calls allocate
        samples_ns = interleaved([partial(time_ns, run) for run in runs], Schedule(LEAST_ROUNDS, SECONDS))
    calls_ns = [[run_ns / calls for run_ns in samples] for samples, calls in zip(samples_ns, counts, strict=True)]
    medians_ns = [statistics.median(samples) for samples in calls_ns]
    quickest = calls_ns[medians_ns.index(min(medians_ns))]
    ratios = [ratio_of_rounds(samples, quickest) for samples in calls_ns]
    return [
        replace(
            row,
            images_per_s=1e9 * size / call_ns,
            call_ms=call_ns * row.setting.instances / 1e6,
            of_quickest=(ratio.low, ratio.high),
        )
        for row, call_ns, ratio in zip(rows, medians_ns, ratios, strict=True)
    ]


def _calls(instances: int) -> int:
    """Calls of a timed run: a multiple of the instances, so that no instance idles while another ends the run."""
    return math.ceil(CALLS / instances) * instances


def _start(files: Files, setting: Setting) -> Classifier:
    """Loads the file into the engine. Raises ExportError if the file was refused, or the CPU lacks the precision."""
    data = files[file_precision(setting.precision, setting.engine)]
    if isinstance(data, ExportError):
        raise data
    threads = setting.threads or _cores()
    if setting.engine == "onnxruntime":
        return onnx_classifier(data, threads)
    if setting.precision == "bf16" and not has_bfloat16():
        raise Unavailable("this CPU has no bfloat16")
    return openvino_classifier(data, setting.precision == "bf16", threads)


def _cores() -> int:
    """CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
