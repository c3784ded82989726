"""Load by this project's client, for machines without NVIDIA's perf_analyzer.

Latency in an open loop counts from a request's *due* time: a client that waits for answers would see a stall only once
(coordinated omission). A request unanswered GIVE_UP_S after the end is abandoned and counts with its wait. This client
takes more of the cores than NVIDIA's; do not compare the two.
"""

from __future__ import annotations

import asyncio
import json
import urllib.request
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any

from benchmarks.load.figures import MAX_IN_FLIGHT, Failed, LeftOut, figures, served_name, unmeasured
from benchmarks.measure.workload import Workload
from clients.classifier import AsyncClassifier, Options
from clients.errors import ClientError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from benchmarks.measure.candidate import Candidate
    from export.equivalence import Images
    from serving.running import Server

GIVE_UP_S = 1.0

Ask = Callable[[], Awaitable[object]]
"""Sends a request, and is done when it is answered."""


@dataclass(frozen=True)
class Answered:
    """`latencies_s` includes abandoned requests, `requests_per_s` does not."""

    latencies_s: NDArray[np.float64]
    requests_per_s: float


@dataclass(frozen=True)
class ServerTimes:
    """Sums since the model's start."""

    requests: int
    queue_ns: int
    compute_ns: int

    def mean_ms_since(self, before: ServerTimes) -> tuple[float, float]:
        """Queue and compute time; raises Failed without answered requests."""
        requests = self.requests - before.requests
        if not requests:
            raise Failed("the server's statistics: expected answered requests, found none")
        return (
            (self.queue_ns - before.queue_ns) / requests / 1e6,
            (self.compute_ns - before.compute_ns) / requests / 1e6,
        )


def measure(
    server: Server, candidate: Candidate, workload: Workload, images: Images, seconds: float
) -> dict[str, float]:
    """Images uint8 (n, C, H, W)."""
    return asyncio.run(_measure(server, served_name(candidate, workload), workload, images, seconds))


async def _measure(server: Server, name: str, workload: Workload, images: Images, seconds: float) -> dict[str, float]:
    import numpy as np

    batch = np.resize(images, (workload.batch, *images.shape[1:]))
    in_flight = workload.in_flight or MAX_IN_FLIGHT
    options = Options(*workload.address(server), retry_s=0, batch_size=workload.batch, concurrency=in_flight)
    classifier = AsyncClassifier(options, name)
    try:
        async with classifier:
            await classifier.answer(batch)  # connects
            before = server_times(server.http_url, name)
            if workload.in_flight is not None:
                answered = await closed_loop(lambda: classifier.answer(batch), workload.in_flight, seconds)
            else:
                answered = await open_loop(lambda: classifier.answer(batch), workload.due_s(seconds), seconds)
            server_ms = server_times(server.http_url, name).mean_ms_since(before)
    except ClientError as error:
        raise unmeasured(str(error)) from error
    return figures(answered.latencies_s, answered.requests_per_s * workload.batch, server_ms)


def server_times(http_url: str, name: str) -> ServerTimes:
    with urllib.request.urlopen(f"http://{http_url}/v2/models/{name}/stats") as answer:
        times: dict[str, dict[str, Any]] = json.load(answer)["model_stats"][0]["inference_stats"]
    compute_ns = sum(times[f"compute_{part}"]["ns"] for part in ("input", "infer", "output"))
    return ServerTimes(times["success"]["count"], times["queue"]["ns"], compute_ns)


async def closed_loop(ask: Ask, in_flight: int, seconds: float) -> Answered:
    import numpy as np

    latencies_s: list[float] = []
    start = perf_counter()

    async def work() -> None:
        while (begin := perf_counter()) < start + seconds:
            await ask()
            latencies_s.append(perf_counter() - begin)

    await asyncio.gather(*(work() for _ in range(in_flight)))
    return Answered(np.array(latencies_s), len(latencies_s) / (perf_counter() - start))


async def open_loop(ask: Ask, due_s: NDArray[np.float64], seconds: float) -> Answered:
    """`due_s` are seconds from now.

    The rate counts until the last answer, less the shortest latency: an idle server takes that too.
    """
    import numpy as np

    start = perf_counter()
    turns, over = asyncio.Semaphore(MAX_IN_FLIGHT), asyncio.Event()

    async def send() -> float:
        async with turns:
            if not over.is_set():
                await ask()
        return perf_counter() - start

    tasks = []
    for due in due_s:
        if (early_s := start + due - perf_counter()) > 0:
            await asyncio.sleep(early_s)
        tasks.append(asyncio.create_task(send()))
    await asyncio.wait(tasks, timeout=max(0, start + seconds + GIVE_UP_S - perf_counter()))
    over.set()
    over_s = perf_counter() - start
    # Leftovers must not disturb the next load.
    ended_s = await asyncio.gather(*tasks, return_exceptions=True)
    for each in ended_s:
        if isinstance(each, BaseException):
            raise each
    done_s = np.array(ended_s, np.float64)
    latencies_s = np.minimum(done_s, over_s) - due_s
    answered_s = done_s[done_s <= over_s]
    if not len(answered_s):
        raise LeftOut(f"no request was answered within {over_s:.1f} s")
    took_s = max(seconds, answered_s.max() - latencies_s.min())
    return Answered(latencies_s, len(answered_s) / took_s)
