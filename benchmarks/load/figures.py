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

# Open loop only.
MIN_REQUESTS = 40  # one request more or less changes the rate by 2.5 %
MAX_IN_FLIGHT = 256  # an unbounded queue takes all; more would fill the server's memory
# Triton's messages for a full queue and for too long a wait.
REFUSALS = ("Exceeds maximum queue size", "Request timeout expired")


class Failed(Exception):
    """A load that could not be measured, or a wrong answer."""


class WrongAnswer(Failed):
    pass


class LeftOut(Exception):
    """The server refused requests or answered too few."""


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


def figures(
    latencies_s: NDArray[np.float64], images_per_s: float, server_ms: tuple[float, float] | None = None
) -> dict[str, float]:
    """`server_ms`: mean queue and compute time."""
    import numpy as np

    percentiles = {f"p{percent}_ms": 1000 * float(np.percentile(latencies_s, percent)) for percent in (50, 90, 95, 99)}
    times = dict(zip(("server_queue_ms", "server_compute_ms"), server_ms or (), strict=False))
    return {"images_per_s": images_per_s, **percentiles, **times}


def unmeasured(words: str) -> LeftOut | Failed:
    reason = next((each for each in REFUSALS if each in words), None)
    return LeftOut(f"the server refused requests: {reason}") if reason else Failed(words)
