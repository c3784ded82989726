"""Compares two results of one benchmark: changes beyond noise.

Each file's samples are resampled separately, in blocks of neighbours: the files come from different runs. The interval
is wider than 95 %: of two runs of the same program at most 2 % of the rows differ (tests/benchmarks/test_compare.py).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path

import numpy as np

from benchmarks.measure.run import Row, Run, RunError, read
from benchmarks.reporting.tables.table import Table, cell
from export.intervals import RESAMPLES, Ratio, blocks

# Fields that identify a row.
KEYS = (
    *("name", "network", "model", "candidate", "checkpoint", "runtime", "engine", "precision", "rewrites"),
    *("transport", "protocol", "shared_memory", "axis"),
)
SIZES = (
    *("at_depth", "depth", "dim", "batch", "images_a_call", "instances", "threads", "in_flight"),
    *("rate", "device"),
)
MACHINE = ("cpu", "cores", "threads", "device", "system", "python")
MIN_ROUNDS = 10
COVERED, WIDENED = 99.5, 2.0  # per cent of the resampled ratios; then this power widens the interval around the ratio

HEADER = ("row", "what changed", "before ms", "after ms", "times as fast (interval)")


def changes(before: Path, after: Path) -> Table:
    """A row for each row of the files, in the second file's order. Raises RunError if the files share no row."""
    olds, news = (dict(_samples(read(path))) for path in (before, after))
    common = [name for name in news if name in olds]
    if not common:
        raise RunError(f"{after}: expected rows with samples that are also in {before}, found none")
    lines = []
    for name in common:
        ratio = ratio_of_runs(olds[name], news[name])
        fewest = min(len(olds[name]), len(news[name]))
        medians = (f"{float(np.median(samples)):,.3f}" for samples in (olds[name], news[name]))
        lines.append((name, verdict(ratio, fewest), *medians, cell(ratio)))
    lines += [(name, "only before", "-", "-", "-") for name in olds if name not in news]
    lines += [(name, "only after", "-", "-", "-") for name in news if name not in olds]
    return Table([dict(zip(HEADER, line, strict=True)) for line in lines], 2)


def differences(before: Path, after: Path) -> Iterator[str]:
    """Lines on machines and packages that differ, and on interrupted runs."""
    runs = [read(path) for path in (before, after)]
    for path, run in zip((before, after), runs, strict=True):
        if run.interrupted:
            yield f"{path}: interrupted"
    old, new = (run.machine for run in runs)
    pairs = [(name, old.get(name), new.get(name)) for name in MACHINE]
    packages = [each.get("packages") or {} for each in (old, new)]
    pairs += [(name, *(each.get(name) for each in packages)) for name in dict.fromkeys(chain(*packages))]
    for name, was, is_now in pairs:
        if was != is_now:
            yield f"{name}: {was or 'not there'} before, {is_now or 'not there'} after"


def verdict(ratio: Ratio, rounds: int) -> str:
    if rounds < MIN_ROUNDS:
        return f"cannot tell: {rounds} rounds, {MIN_ROUNDS} wanted"
    if ratio.low > 1:
        return "faster"
    return "slower" if ratio.high < 1 else "same within noise"


def ratio_of_runs(before_ms: Sequence[float], after_ms: Sequence[float]) -> Ratio:
    """Speed of the second run relative to the first."""
    generator = np.random.default_rng(0)
    medians = []
    for samples in (np.asarray(before_ms), np.asarray(after_ms)):
        medians.append(np.median(samples[blocks(generator, len(samples), RESAMPLES)], axis=1))
    outside, ratio = (100 - COVERED) / 2, float(np.median(before_ms) / np.median(after_ms))
    low, high = ratio * (np.percentile(medians[0] / medians[1], (outside, 100 - outside)) / ratio) ** WIDENED
    return Ratio(ratio, float(low), float(high))


def _samples(run: Run) -> Iterator[tuple[str, list[float]]]:
    for row in run.rows:
        if samples_ns := row.get("samples_ns"):
            yield _name(row), [ns / 1e6 for ns in samples_ns]
        elif samples_ms := row.get("rounds_p50_ms"):  # load results: the median latency of each round
            yield _name(row), [float(sample) for sample in samples_ms]


def _name(row: Row) -> str:
    words = [str(row[key]) for key in KEYS if isinstance(row.get(key), str)]
    return ", ".join([*words, *(f"{key} {json.dumps(row[key])}" for key in SIZES if row.get(key) is not None)])
