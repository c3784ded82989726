"""The server's file in this process, on the server's device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING

from benchmarks.contest.runtimes import Device, Setup
from benchmarks.load.terms import InProcess, Load, Measure, Sample, sample

if TYPE_CHECKING:
    from benchmarks.contest.engines import Run
    from benchmarks.load.published import Published
    from export.equivalence import Images, Logits


@dataclass(frozen=True)
class Instance:
    """A copy of the model, on a GPU with a stream of its own."""

    run: Run
    in_stream: Callable[[], AbstractContextManager[object]]
    device: Device

    def logits(self, images: Images, batch: int) -> Logits:
        """Images uint8 (n, C, H, W) in the host's memory."""
        from benchmarks.contest.calls import classify

        with self.in_stream():
            return classify(self.run, images, batch, self.device)

    def call(self, images: Images) -> Callable[[], object]:
        """On a GPU with copies to and from it, as on the server."""
        from benchmarks.contest.calls import TimedCall

        call = TimedCall(self.run, images, len(images), len(images), self.device)
        if self.device == "cpu":
            return call
        call.with_copies()  # pins memory
        return call.with_copies


def instances(published: Published, who: InProcess, device: Device = "cpu") -> list[Instance]:
    threads = who.sharing.threads
    setup = Setup(who.form.engine, who.form.precision, device, threads, published.config)
    return [_instance(published, setup) for _ in range(who.sharing.instances)]


def _instance(published: Published, setup: Setup) -> Instance:
    if setup.device == "cpu":
        return Instance(_start(published, setup), nullcontext, setup.device)
    import torch

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):  # other threads do not know the stream
        run = _start(published, setup)
    return Instance(run, lambda: torch.cuda.stream(stream), setup.device)


def _start(published: Published, setup: Setup) -> Run:
    from benchmarks.contest.engines import start
    from benchmarks.contest.onnx_engines import execution

    if published.plan is not None:
        return execution(published.plan, lambda batch: 0)  # its only profile
    return start(published.data, setup)


def measurer(copies: Sequence[Instance], images: Images) -> Measure:
    """A thread per instance; images uint8 (n, C, H, W)."""
    import numpy as np

    def measure(load: Load, seconds: float) -> Sample:
        batch = np.resize(images, (load.batch, *images.shape[1:]))
        busy = copies[: load.in_flight]
        calls = []
        for each in busy:
            with each.in_stream():
                calls.append(each.call(batch))
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
        return sample(latencies_s, len(latencies_s) * load.batch / (perf_counter() - begin), None)

    return measure
