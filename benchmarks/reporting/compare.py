"""Compares two results of one benchmark: changes beyond noise.

Each file's samples are resampled separately: the files come from different runs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measure.timing import RESAMPLES, Ratio
from benchmarks.reporting.sources import ReportError, Result, Row, benchmark, cell, read_result

# Fields that identify a row.
KEYS = (
    "name",
    "model",
    "contestant",
    "checkpoint",
    "runtime",
    "engine",
    "precision",
    "rewrites",
    "transport",
    "protocol",
    "shared_memory",
)
USUAL = {"engine": "onnxruntime", "precision": "fp32", "shared_memory": "none"}  # older results do not name these
SIZES = ("depth", "dim", "batch", "micro_batch", "images_a_call", "instances", "threads", "in_flight", "rate", "device")
MACHINE = ("cpu", "cores", "threads", "device", "system", "python")

HEADER = ("row", "what changed", "before ms", "after ms", "times as fast (95 %)")


def changes(before: Path, after: Path) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """In the second file's order; raises ReportError for incomparable files."""
    old, new = _result(before), _result(after)
    if benchmark(old) != benchmark(new):
        raise ReportError(f"{after}: expected a result of {benchmark(old)} as {before} is, found {benchmark(new)}")
    olds, news = _by_name(before, old), _by_name(after, new)
    common = [name for name in news if name in olds]
    if not common:
        raise ReportError(f"{after}: expected rows with samples that are also in {before}, found none")
    lines = []
    for name in common:
        ratio = ratio_of_runs(olds[name], news[name])
        medians = (f"{float(np.median(samples)):,.3f}" for samples in (olds[name], news[name]))
        lines.append((name, verdict(ratio), *medians, cell(ratio)))
    lines += [(name, "only before", "-", "-", "-") for name in olds if name not in news]
    lines += [(name, "only after", "-", "-", "-") for name in news if name not in olds]
    return HEADER, lines


def differences(before: Path, after: Path) -> Iterator[str]:
    old, new = _result(before), _result(after)
    for path, result in ((before, old), (after, new)):
        if "interrupted" in result:
            yield f"{path}: interrupted"
    old, new = old["environment"], new["environment"]
    pairs = [(name, old.get(name), new.get(name)) for name in MACHINE]
    packages = [each.get("packages", {}) for each in (old, new)]
    pairs += [(name, *(each.get(name) for each in packages)) for name in dict.fromkeys(chain(*packages))]
    for name, was, is_now in pairs:
        if was != is_now:
            yield f"{name}: {was or 'not there'} before, {is_now or 'not there'} after"


def verdict(ratio: Ratio) -> str:
    if ratio.low > 1:
        return "faster"
    return "slower" if ratio.high < 1 else "same within noise"


def ratio_of_runs(before_ms: Sequence[float], after_ms: Sequence[float]) -> Ratio:
    """Speed of the second run relative to the first."""
    generator = np.random.default_rng(0)
    medians = []
    for samples in (np.asarray(before_ms), np.asarray(after_ms)):
        drawn = generator.integers(len(samples), size=(RESAMPLES, len(samples)))
        medians.append(np.median(samples[drawn], axis=1))
    low, high = np.percentile(medians[0] / medians[1], (2.5, 97.5))
    return Ratio(float(np.median(before_ms) / np.median(after_ms)), float(low), float(high))


def _result(path: Path) -> Result:
    if not (content := read_result(path)):
        raise ReportError(f'{path}: expected the result of a benchmark, found no known "benchmark"')
    return content


def _by_name(path: Path, result: Result) -> dict[str, list[float]]:
    try:
        return {name: [float(sample) for sample in samples] for name, samples in _samples(result)}
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ReportError(f"{path}: expected rows with their samples, found {error!r}") from error


def _samples(result: Result) -> Iterator[tuple[str, list[float]]]:
    for place, row in _rows(result):
        if samples_ns := row.get("samples_ns"):
            yield f"{place}{_name(row)}", [ns / 1e6 for ns in samples_ns]
        elif samples := row.get("samples"):  # load results: the median latency of each round
            yield f"{place}{_name(row)}", [sample["p50_ms"] for sample in samples]


def _rows(result: Result) -> Iterator[tuple[str, Row]]:
    for measured in result.get("results", ()):
        yield from ((f"depth {measured['depth']}, ", row) for row in measured["rows"])
    for axis, rows in result.get("axes", {}).items():
        yield from ((f"{axis} sweep, ", row) for row in rows)
    rows = result.get("rows")  # a number in a result of bulk
    for row in (*(rows if isinstance(rows, list) else ()), *result.get("derived", ())):
        yield "", row
        for measured in row.get("times", ()):  # of a foreign network, at each batch
            place = f"{row['network']}, batch {measured['batch']}, "
            yield from ((place, timed) for timed in measured["rows"])


def _name(row: dict[str, Any]) -> str:
    if name := row.get("name") or row.get("checkpoint"):
        return str(name)
    words = [str(row[key]) for key in KEYS if isinstance(row.get(key), str) and row[key] != USUAL.get(key)]
    words += [f"{key} {json.dumps(row[key])}" for key in SIZES if row.get(key) is not None]
    return ", ".join(words)
