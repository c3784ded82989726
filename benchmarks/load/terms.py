"""Terms of all load generators.

A closed loop keeps a number of requests in flight; an open loop sends each request when it is due.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from benchmarks.contest.runtimes import ENGINES, Engine, Precision
from clients.options import Protocol

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Memory = Literal["none", "system", "cuda"]
"""Memory that client and server share, for images and logits."""

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
class Sharing:
    """Copies of the model, threads per copy (0: one per core)."""

    instances: int
    threads: int

    def __str__(self) -> str:
        return f"{self.instances}x{self.threads}"


@dataclass(frozen=True)
class Form:
    model: str
    engine: Engine = "onnxruntime"
    precision: Precision = "fp32"

    def __str__(self) -> str:
        return f"{self.model}-{self.engine}-{self.precision}"


@dataclass(frozen=True)
class Target:
    form: Form
    sharing: Sharing
    protocol: Protocol
    shared_memory: Memory

    @property
    def served_name(self) -> str:
        return f"{self.form}-{self.sharing}"

    def __str__(self) -> str:
        return f"{self.served_name}, {wire(vars(self))}"


@dataclass(frozen=True)
class InProcess:
    form: Form
    sharing: Sharing

    def __str__(self) -> str:
        return f"{self.form}-{self.sharing}, in process"


def wire(row: Mapping[str, Any]) -> str:
    """In older results True stands for the system's memory."""
    named = {True: ", shared memory", "system": ", shared memory", "cuda": ", CUDA shared memory"}
    return f"{row['protocol']}{named.get(row['shared_memory'], '')}"


def engine(row: Mapping[str, Any]) -> str:
    """Empty for the usual form and older results."""
    name, precision = row.get("engine", "onnxruntime"), row.get("precision", "fp32")
    return "" if (name, precision) == ("onnxruntime", "fp32") else f"{ENGINES[name]} {precision}, "


def engine_and_sharing(row: Mapping[str, Any]) -> str:
    return f"{engine(row)}{row['instances']} x {row['threads'] or 'all'}"


@dataclass(frozen=True)
class Load:
    """Images per request; `in_flight` for a closed loop, else `rate` in images a second."""

    batch: int
    in_flight: int | None = None
    rate: float | None = None

    def requests(self, seconds: float) -> int:
        return round((self.rate or 0) * seconds / self.batch)


@dataclass(frozen=True)
class Sample:
    """The server's times are means, None in process."""

    images_per_s: float
    p50_ms: float
    p90_ms: float
    p95_ms: float
    p99_ms: float
    server_queue_ms: float | None = None
    server_compute_ms: float | None = None


Measure = Callable[[Load, float], Sample]
"""Measures a load for a number of seconds."""

Turn = tuple[Target | InProcess, Load]
"""What takes turns: a target under a load."""


def in_process(target: Target, load: Load) -> Turn:
    """For comparison; more requests than instances would only wait."""
    in_flight = min(load.in_flight or 1, target.sharing.instances)
    return InProcess(target.form, target.sharing), replace(load, in_flight=in_flight)


def sample(latencies_s: NDArray[np.float64], images_per_s: float, server_ms: tuple[float, float] | None) -> Sample:
    """`server_ms`: queue and compute time."""
    import numpy as np

    p50, p90, p95, p99 = (1000 * float(value) for value in np.percentile(latencies_s, (50, 90, 95, 99)))
    return Sample(images_per_s, p50, p90, p95, p99, *(server_ms or (None, None)))


def arrivals_s(load: Load, seconds: float) -> NDArray[np.float64]:
    """Due times from the loop's start, the same at each call.

    A Poisson process with a fixed number of requests: a random number would miss a low rate by over 5 %.
    """
    import numpy as np

    return np.sort(np.random.default_rng(SEED).uniform(0, seconds, load.requests(seconds)))


def unmeasured(words: str) -> LeftOut | Failed:
    reason = next((each for each in REFUSALS if each in words), None)
    return LeftOut(f"the server refused requests: {reason}") if reason else Failed(words)
