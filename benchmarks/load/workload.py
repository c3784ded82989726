"""What asks a candidate: a `Workload`. Its figures of a round are a dictionary, of all rounds a row.

A closed loop keeps a number of requests in flight; an open loop sends each request when it is due.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from benchmarks.measure.engines import ENGINES

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from benchmarks.measure.candidate import Candidate
    from clients.options import Protocol
    from serving.running import Server

IN_PROCESS: Literal["in process"] = "in process"
LARGEST_BATCH = 5000  # images of a request

# Open loop only.
MIN_REQUESTS = 40  # one request more or less changes the rate by 2.5 %
MAX_IN_FLIGHT = 256  # an unbounded queue takes all; more would fill the server's memory
SEED = 0
# Triton's messages for a full queue and for too long a wait.
REFUSALS = ("Exceeds maximum queue size", "Request timeout expired")


class Failed(Exception):
    """A load that could not be measured, or a wrong answer."""


class WrongAnswer(Failed):
    pass


class LeftOut(Exception):
    """The server refused requests or answered too few."""


@dataclass(frozen=True)
class Workload:
    """Requests of `batch` images to `instances` copies of a candidate.

    `in_flight` for a closed loop, else `rate` in images a second. `protocol` is a client's or IN_PROCESS.
    `shared_memory` of client and server holds images and logits.
    """

    batch: int
    in_flight: int | None = None
    rate: float | None = None
    protocol: Literal["grpc", "http", "in process"] = "in process"
    shared_memory: Literal["none", "system", "cuda"] = "none"
    instances: int = 1

    def requests(self, seconds: float) -> int:
        return round((self.rate or 0) * seconds / self.batch)

    def address(self, server: Server) -> tuple[str, Protocol]:
        """For a client."""
        return (server.grpc_url, "grpc") if self.protocol == "grpc" else (server.http_url, "http")

    def alone(self) -> Workload:
        """In process, for comparison; more requests than instances would only wait."""
        in_flight = min(self.in_flight or 1, self.instances)
        return replace(self, in_flight=in_flight, protocol=IN_PROCESS, shared_memory="none")

    def due_s(self, seconds: float) -> NDArray[np.float64]:
        """When requests are due, from the loop's start; the same at each call.

        A Poisson process with a fixed number of requests: a random number would miss a low rate by over 5 %.
        """
        import numpy as np

        return np.sort(np.random.default_rng(SEED).uniform(0, seconds, self.requests(seconds)))


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
