"""The figures of a workload in a round, why there are none, and how both are named."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from benchmarks.measure.engines import ENGINES

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

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
    """Without the usual engine and precision."""
    usual = (row["engine"], row["precision"]) == ("onnxruntime", "fp32")
    engine = "" if usual else f"{ENGINES[row['engine']].label} {row['precision']}, "
    return f"{engine}{row['instances']} x {row['threads'] or 'all'}"


def figures(latencies_s: NDArray[np.float64], images_per_s: float) -> dict[str, float]:
    import numpy as np

    percentiles = {f"p{percent}_ms": 1000 * float(np.percentile(latencies_s, percent)) for percent in (50, 90, 95, 99)}
    return {"images_per_s": images_per_s, **percentiles}
