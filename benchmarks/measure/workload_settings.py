"""How images reach a candidate: by which protocol, in what batches, and how many requests at once.

`best_workload` searches the fastest batch size and number of threads for calls in this process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from benchmarks.measure.candidate import Candidate, Program
from benchmarks.measure.devices import cores
from benchmarks.measure.engines import SERVED, start
from export.interleaved import shared

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from clients.options import Protocol
    from export.compare_logits import Images
    from serving.local_server import Server

IN_PROCESS: Literal["in process"] = "in process"
LARGEST_BATCH = 5000  # images of a request to a server
SEED = 0  # of an open loop's arrival times
MICRO_BATCHES = (16, 32, 64, 128, 256)
SEARCH_IMAGES = 2560
SEARCH_ROUNDS = 3


@dataclass(frozen=True)
class Workload:
    """Requests of `batch` images to `instances` copies of a candidate, by a client's `protocol` or in this process.

    A closed loop keeps `in_flight` requests running (None: a single request). An open loop sends `rate` images a
    second, each request when it is due. In process, a call has `micro_batch` images (None: all). `shared_memory`: the
    memory of client and server that holds images and logits.
    """

    batch: int
    in_flight: int | None = None
    micro_batch: int | None = None
    rate: float | None = None
    protocol: Literal["grpc", "http", "in process"] = "in process"
    shared_memory: Literal["none", "system", "cuda"] = "none"
    instances: int = 1

    def requests(self, seconds: float) -> int:
        """How many requests an open loop sends in this time."""
        return round((self.rate or 0) * seconds / self.batch)

    def address(self, server: Server) -> tuple[str, Protocol]:
        """The URL and protocol for a client of the server."""
        return (server.grpc_url, "grpc") if self.protocol == "grpc" else (server.http_url, "http")

    def alone(self) -> Workload:
        """The same load in process, for comparison. More requests than instances would only wait."""
        in_flight = min(self.in_flight or 1, self.instances)
        return replace(self, in_flight=in_flight, protocol=IN_PROCESS, shared_memory="none")

    def due_s(self, seconds: float) -> NDArray[np.float64]:
        """When an open loop's requests are due, in seconds from its start; the same times at each call.

        The arrivals are a Poisson process with a fixed number of requests: a random number would miss a low rate by
        over 5 %.
        """
        import numpy as np

        return np.sort(np.random.default_rng(SEED).uniform(0, seconds, self.requests(seconds)))

    def __str__(self) -> str:
        at_once = self.in_flight or 1
        return f"{self.micro_batch} a call, {at_once} x {cores() // at_once} threads"


def best_workload(program: Program, candidate: Candidate, images: Images) -> Workload:
    """The fastest of MICRO_BATCHES, with calls from a single thread or from a thread per core."""
    from benchmarks.measure.interleaved_timing import time_interleaved

    ways = [Workload(len(images), at_once, size) for size in MICRO_BATCHES for at_once in sorted({1, cores()})]
    part = images[: min(SEARCH_IMAGES, MICRO_BATCHES[-1] * cores())]  # the largest calls fill all cores
    runs = {str(way): runner(program, candidate, way, part) for way in ways}
    measured = time_interleaved(runs, 0.001, min_rounds=SEARCH_ROUNDS)
    return min(ways, key=lambda way: measured[str(way)].percentile_ms(50))


def runner(program: Program, candidate: Candidate, workload: Workload, images: Images) -> Callable[[], None]:
    """A function that classifies `images`. Each thread has a copy of the program and an equal share of the cores."""
    size, at_once = workload.micro_batch or len(images), workload.in_flight or 1
    batches = [images[i : i + size] for i in range(0, len(images), size)]
    copy = replace(candidate, threads=cores() // at_once)
    workers = [start(program, copy) for _ in range(at_once)]
    return shared(ThreadPoolExecutor(at_once), workers, batches)


def served_name(candidate: Candidate, workload: Workload) -> str:
    """The model's name on the server. Workloads that differ only in their requests share a model."""
    sharing = f"{workload.instances}x{candidate.threads}"
    return f"{candidate.model}-{candidate.runtime.engine}-{candidate.precision}-{sharing}"


def transport(row: Mapping[str, Any]) -> str:
    """The protocol and, if client and server share memory, the kind of memory. `row`: of a result, or a workload."""
    memory = {"system": ", shared memory", "cuda": ", CUDA shared memory"}
    return f"{row['protocol']}{memory.get(row['shared_memory'], '')}"


def engine_and_sharing(row: Mapping[str, Any]) -> str:
    """Engine and precision, unless they are ONNX Runtime in float32, and INSTANCES x THREADS of a result's row."""
    is_default = (row["engine"], row["precision"]) == ("onnxruntime", "fp32")
    engine = "" if is_default else f"{SERVED[row['engine']].library} {row['precision']}, "
    return f"{engine}{row['instances']} x {row['threads'] or 'all'}"
