"""Loads the file that the server has in this process, on the server's device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING

from benchmarks.measure.candidate import Candidate, Classify
from benchmarks.measure.workload_settings import Workload

if TYPE_CHECKING:
    from benchmarks.load.published_candidates import Published
    from export.compare_logits import Images, Logits
    from export.precision_table import Device


@dataclass(frozen=True)
class Instance:
    """A copy of the model. On a GPU each copy has a CUDA stream; a thread enters it with `in_stream()`."""

    run: Classify
    in_stream: Callable[[], AbstractContextManager[object]]
    device: Device

    def logits(self, images: Images, batch: int) -> Logits:
        """float32 (n, classes) of images uint8 (n, C, H, W), both in the host's memory."""
        from benchmarks.measure.calls_on_device_buffers import classify

        with self.in_stream():
            return classify(self.run, images, batch, self.device)

    def call(self, images: Images) -> Callable[[], object]:
        """A function that classifies `images`. On a GPU it copies images to the device and logits back, as a server."""
        from benchmarks.measure.calls_on_device_buffers import Calls

        call = Calls(self.run, images, len(images), self.device)
        if self.device == "cpu":
            return call
        call.with_copies()  # the first call pins memory
        return call.with_copies


def start_instance(published: Published, candidate: Candidate) -> Instance:
    """Loads the published model in the candidate's engine, on a GPU with a CUDA stream of its own."""
    if candidate.device == "cpu":
        return Instance(_start(published, candidate), nullcontext, candidate.device)
    import torch

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):  # current in this thread alone; others enter it with in_stream
        run = _start(published, candidate)
    return Instance(run, lambda: torch.cuda.stream(stream), candidate.device)


def _start(published: Published, candidate: Candidate) -> Classify:
    from benchmarks.measure.engines import start
    from benchmarks.measure.run_tensorrt import execution

    if published.plan is not None:
        return execution(published.plan, lambda batch: 0)  # the plan's only profile
    return start(published.data, candidate)


def measure(copies: Sequence[Instance], workload: Workload, images: Images, seconds: float) -> dict[str, float]:
    """Images a second (`images_per_s`) and latencies of calls (`p50_ms`, `p90_ms`, `p95_ms`, `p99_ms`) during
    `seconds`.

    Each call classifies `workload.batch` of the `images`, uint8 (n, C, H, W). Every instance has a thread; at most
    `in_flight` instances work.
    """
    import numpy as np

    batch = np.resize(images, (workload.batch, *images.shape[1:]))
    busy = copies[: workload.in_flight]
    calls = []
    for instance in busy:
        with instance.in_stream():
            calls.append(instance.call(batch))
    begin = perf_counter()

    def work(instance: Instance, call: Callable[[], object]) -> list[float]:
        took_s = []
        with instance.in_stream():
            while (sent := perf_counter()) < begin + seconds:
                call()
                took_s.append(perf_counter() - sent)
        return took_s

    with ThreadPoolExecutor(len(busy)) as pool:
        latencies_s = np.concatenate(list(pool.map(work, busy, calls)))
    took_s = perf_counter() - begin
    percentiles = {f"p{percent}_ms": 1000 * float(np.percentile(latencies_s, percent)) for percent in (50, 90, 95, 99)}
    return {"images_per_s": len(latencies_s) * workload.batch / took_s, **percentiles}
