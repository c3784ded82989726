"""The bounds, errors and names of loads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from benchmarks.measure.engines import ENGINES

if TYPE_CHECKING:
    from benchmarks.measure.candidate import Candidate
    from benchmarks.measure.workload import Workload

LARGEST_BATCH = 5000  # images of a request

MIN_REQUESTS = 40  # of an open loop: one request more or less changes the rate by 2.5 %


class Failed(Exception):
    """A load that could not be measured, or a wrong answer."""


class WrongAnswer(Failed):
    pass


def served_name(candidate: Candidate, workload: Workload) -> str:
    return f"{candidate.model}-{candidate.engine}-{candidate.precision}-{workload.instances}x{candidate.threads}"


def wire(row: Mapping[str, Any]) -> str:
    named = {"system": ", shared memory", "cuda": ", CUDA shared memory"}
    return f"{row['protocol']}{named.get(row['shared_memory'], '')}"


def engine_and_sharing(row: Mapping[str, Any]) -> str:
    """Engine and precision, unless they are the usual ones, and the sharing of the cores."""
    usual = (row["engine"], row["precision"]) == ("onnxruntime", "fp32")
    engine = "" if usual else f"{ENGINES[row['engine']].label} {row['precision']}, "
    return f"{engine}{row['instances']} x {row['threads'] or 'all'}"
