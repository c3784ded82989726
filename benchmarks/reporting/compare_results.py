"""Compares two results of one benchmark, and says which rows changed by more than noise.

The samples of both files are resampled separately, since they come from different runs, and in blocks of neighbours,
since neighbours are alike. The interval is wider than 95 %, so that two runs of the same program differ in at most 2 %
of the rows (tests/benchmarks/test_compare_results.py).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path

import numpy as np

from benchmarks.measure.result_file import Row, Run, RunError, read
from benchmarks.reporting.tables.table import Table, ratio_text
from export.intervals import RESAMPLES, Ratio, blocks

# Fields that identify a row: texts, and numbers.
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
COVERED = 99.5  # per cent of the resampled ratios that the interval covers, before it is widened
WIDENING = 2.0  # the power to which the interval's ends, as factors of the ratio, are raised

HEADER = ("row", "what changed", "before ms", "after ms", "times as fast (interval)")


def changes(before: Path, after: Path) -> Table:
    """A row for each row of the files, in the second file's order. Raises RunError if the files share no row."""
    old_ms, new_ms = (dict(_samples_ms(read(path))) for path in (before, after))
    common = [name for name in new_ms if name in old_ms]
    if not common:
        raise RunError(f"{after}: expected rows with samples that are also in {before}, found none")
    rows = []
    for name in common:
        ratio = ratio_of_runs(old_ms[name], new_ms[name])
        fewest = min(len(old_ms[name]), len(new_ms[name]))
        medians = (f"{float(np.median(samples)):,.3f}" for samples in (old_ms[name], new_ms[name]))
        rows.append((name, verdict(ratio, fewest), *medians, ratio_text(ratio)))
    rows += [(name, "only before", "-", "-", "-") for name in old_ms if name not in new_ms]
    rows += [(name, "only after", "-", "-", "-") for name in new_ms if name not in old_ms]
    return Table([dict(zip(HEADER, row, strict=True)) for row in rows], 2)


def differences(before: Path, after: Path) -> Iterator[str]:
    """A line for each difference of the machines and their packages, and for each interrupted run."""
    runs = [read(path) for path in (before, after)]
    for path, run in zip((before, after), runs, strict=True):
        if run.interrupted:
            yield f"{path}: interrupted"
    old, new = (run.machine for run in runs)
    pairs = [(name, old.get(name), new.get(name)) for name in MACHINE]
    packages = [machine.get("packages") or {} for machine in (old, new)]
    pairs += [(name, *(versions.get(name) for versions in packages)) for name in dict.fromkeys(chain(*packages))]
    for name, was, is_now in pairs:
        if was != is_now:
            yield f"{name}: {was or 'not there'} before, {is_now or 'not there'} after"


def verdict(ratio: Ratio, rounds: int) -> str:
    """'faster', 'slower', 'same within noise' or 'cannot tell'. `rounds`: of the run that has fewer."""
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
    tail, ratio = (100 - COVERED) / 2, float(np.median(before_ms) / np.median(after_ms))
    low, high = ratio * (np.percentile(medians[0] / medians[1], (tail, 100 - tail)) / ratio) ** WIDENING
    return Ratio(ratio, float(low), float(high))


def _samples_ms(run: Run) -> Iterator[tuple[str, list[float]]]:
    """The name and the samples of each row that has samples."""
    for row in run.rows:
        if samples_ns := row.get("samples_ns"):
            yield _name(row), [ns / 1e6 for ns in samples_ns]
        elif samples_ms := row.get("rounds_p50_ms"):  # load results: the median latency of each round
            yield _name(row), [float(sample) for sample in samples_ms]


def _name(row: Row) -> str:
    words = [str(row[key]) for key in KEYS if isinstance(row.get(key), str)]
    return ", ".join([*words, *(f"{key} {json.dumps(row[key])}" for key in SIZES if row.get(key) is not None)])
