"""Service times of two real servers while both are busy, and latencies under Poisson arrivals.

A request holds BATCH images of the shipped ViTBN; each server has an instance of one thread.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from clients.async_classifier import AsyncClassifier

MODEL, BATCH = "vitbn", 64
LOADS = (0.3, 0.5, 0.7)  # of both servers' capacity


def measure(seconds: float) -> dict[str, Any]:
    from export.pipeline import Destination, ExportOptions, export_checkpoint
    from models.catalog import shipped
    from serving.running import running_server

    with tempfile.TemporaryDirectory(prefix="scale-") as folder, ExitStack() as stack:
        options = ExportOptions(Destination(Path(folder)), optimize=True, instances=1, threads=1)
        export_checkpoint(shipped(MODEL), options)
        urls = [stack.enter_context(running_server(Path(folder))).http_url for _ in range(2)]
        return asyncio.run(_measure(urls, seconds))


async def _measure(urls: Sequence[str], seconds: float) -> dict[str, Any]:
    images = np.zeros((BATCH, 1, 28, 28), np.uint8)
    images[:, :, 8:20, 12:16] = 255
    async with AsyncClassifier(urls[0], MODEL) as first, AsyncClassifier(urls[1], MODEL) as second:
        servers = (first, second)
        await _closed_loops(servers, images, 1.0)
        service_ms = await _closed_loops(servers, images, seconds)
        capacity = 2e3 / float(np.mean(service_ms))
        rows = [await _open_loop(servers, images, load * capacity, seconds) | {"load": load} for load in LOADS]
    return {"batch": BATCH, "service_ms": service_ms, "rows": rows}


async def _closed_loops(
    servers: Sequence[AsyncClassifier], images: np.ndarray[Any, np.dtype[np.uint8]], seconds: float
) -> list[float]:
    durations: list[float] = []

    async def client(server: AsyncClassifier) -> None:
        end = time.perf_counter() + seconds
        while (started := time.perf_counter()) < end:
            await server.logits(images)
            durations.append(1e3 * (time.perf_counter() - started))

    await asyncio.gather(*(client(server) for server in servers))
    return durations


async def _open_loop(
    servers: Sequence[AsyncClassifier], images: np.ndarray[Any, np.dtype[np.uint8]], rate: float, seconds: float
) -> dict[str, Any]:
    """Sends to the less busy of two draws, like the proxy; late sending counts as waiting."""
    rng, in_flight, durations = np.random.default_rng(0), [0, 0], list[float]()

    async def request(due: float) -> None:
        place = min(rng.integers(0, 2, 2).tolist(), key=lambda each: in_flight[each])
        in_flight[place] += 1
        try:
            await servers[place].logits(images)
            durations.append(1e3 * (time.perf_counter() - due))
        finally:
            in_flight[place] -= 1

    due, tasks = time.perf_counter(), list[asyncio.Task[None]]()
    end = due + seconds
    while (due := due + float(rng.exponential(1 / rate))) < end:
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        tasks.append(asyncio.create_task(request(due)))
    await asyncio.gather(*tasks)
    p50, p99 = np.percentile(durations, [50, 99]).tolist()
    return {"rate": rate, "requests": len(durations), "p50_ms": p50, "p99_ms": p99}
