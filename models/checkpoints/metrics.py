"""A checkpoint's metrics: a JSON object, checked on writing and reading.

`temperature` divides the logits. Below `evidence_limit` a picture is none of the classes (evaluation/rejection.py).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

from common.printable import is_printable

Metrics = dict[str, Any]

SHARES = (
    "test_accuracy",
    "held_out_accuracy",
    "calibration_error",
    "calibration_error_before",
    "rejected_held_out",
    "rejected_drawings",
)
COUNTS = ("epochs", "test_images")
HIGHEST_TEMPERATURE = 1000.0
DATASET = ("dataset", "data_dir", "pictures", "test_images")


class MetricsError(ValueError):
    pass


def of_dataset(metrics: Metrics) -> Metrics:
    """The entries that describe the dataset: they stay when a network is adapted or cut."""
    return {name: value for name, value in metrics.items() if name in DATASET}


def to_json(metrics: Metrics) -> str:
    """Raises MetricsError."""
    _check(metrics)
    try:
        return json.dumps(metrics, allow_nan=False)
    except (ValueError, TypeError, RecursionError) as error:
        raise MetricsError(f"metrics: expected values of JSON, found {error}") from error


def from_json(text: str) -> Metrics:
    """Raises MetricsError."""
    try:
        metrics = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise MetricsError(f"metrics: expected a JSON object, found {error}") from error
    if not isinstance(metrics, dict):
        raise MetricsError(f"metrics: expected a JSON object, found {type(metrics).__name__}")
    _check(metrics)
    return metrics


def _check(metrics: Metrics) -> None:
    for name in SHARES:
        _require(metrics, name, "a number from 0 to 1", lambda value: _is_number(value) and 0 <= value <= 1)  # no NaN
    for name in COUNTS:
        _require(metrics, name, "an integer of at least 1", lambda value: type(value) is int and value >= 1)
    expected = f"a number above 0, up to {HIGHEST_TEMPERATURE:g}"
    _require(metrics, "temperature", expected, lambda value: _is_number(value) and 0 < value <= HIGHEST_TEMPERATURE)
    _require(metrics, "evidence_limit", "a finite number", lambda value: _is_number(value) and math.isfinite(value))
    for name in ("dataset", "data_dir"):
        _require(metrics, name, "a printable name", lambda value: isinstance(value, str) and is_printable(value))
    for name in ("options", "adapted"):
        _require(metrics, name, "an object", lambda value: isinstance(value, dict))
    _require(metrics, "pictures", "classes and contents by part", _is_record)


def _require(metrics: Metrics, name: str, expected: str, holds: Callable[[Any], bool]) -> None:
    if name in metrics and not holds(metrics[name]):
        raise MetricsError(f"metrics: expected {name} to be {expected}, found {str(metrics[name])[:40]!r}")


def _is_record(value: object) -> bool:
    parts = list(value.values()) if isinstance(value, dict) else [None]
    return all(isinstance(part, dict) and all(isinstance(each, str) for each in part.values()) for part in parts)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _refuse(constant: str) -> None:
    raise ValueError(f"the constant {constant}")
