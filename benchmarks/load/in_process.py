"""The same ONNX file in this process, on the server's device: the upper limit for a server."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from time import perf_counter
from typing import TYPE_CHECKING

from benchmarks.contest.runtimes import Device, Setup
from benchmarks.load.terms import Load, Measure, Sample, Sharing, sample

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.contest.engines import Run
    from benchmarks.load.published import Published
    from export.equivalence import Images

    Instance = tuple[Run, Callable[[], AbstractContextManager[object]]]


def measurer(published: Published, images: Images, sharing: Sharing, device: Device = "cpu") -> Measure:
    """One session per instance, each in its own thread; images are uint8 (n, C, H, W).

    On a GPU each has a stream of its own, and a call counts with the copies to and from the device, as the server's.
    """
    import numpy as np

    from benchmarks.contest.calls import classify

    instances = [_instance(published, sharing, device) for _ in range(sharing.instances)]

    def measure(load: Load, seconds: float) -> Sample:
        batch = np.resize(images, (load.batch, *images.shape[1:]))
        begin = perf_counter()

        def work(instance: Instance) -> list[float]:
            run, in_stream = instance
            took_s = []
            with in_stream():
                while (sent := perf_counter()) < begin + seconds:
                    classify(run, batch, load.batch, device)
                    took_s.append(perf_counter() - sent)
            return took_s

        busy = instances[: load.in_flight]
        with ThreadPoolExecutor(len(busy)) as pool:
            latencies_s = np.concatenate(list(pool.map(work, busy)))
        return sample(latencies_s, len(latencies_s) * load.batch / (perf_counter() - begin), None)

    return measure


def _instance(published: Published, sharing: Sharing, device: Device) -> Instance:
    from benchmarks.contest.engines import start

    setup = Setup(device=device, threads=sharing.threads, config=published.config)
    if device == "cpu":
        return start(published.data, setup), nullcontext
    import torch

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):  # threads know no stream of the thread that made them
        run = start(published.data, setup)
    return run, lambda: torch.cuda.stream(stream)
