"""The same ONNX file in this process: the upper limit for a server."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from time import perf_counter
from typing import TYPE_CHECKING

from benchmarks.contest.runtimes import Setup
from benchmarks.load.terms import Load, Measure, Sample, Sharing, sample

if TYPE_CHECKING:
    from export.equivalence import Classifier, Images


def measurer(data: bytes, images: Images, sharing: Sharing) -> Measure:
    """One session per instance, each in its own thread; images are uint8 (n, C, H, W)."""
    import numpy as np

    from benchmarks.contest.engines import start

    sessions: list[Classifier] = [start(data, Setup(threads=sharing.threads)) for _ in range(sharing.instances)]

    def measure(load: Load, seconds: float) -> Sample:
        batch = np.resize(images, (load.batch, *images.shape[1:]))
        begin = perf_counter()

        def work(classify: Classifier) -> list[float]:
            took_s = []
            while (sent := perf_counter()) < begin + seconds:
                classify(batch)
                took_s.append(perf_counter() - sent)
            return took_s

        busy = sessions[: load.in_flight]
        with ThreadPoolExecutor(len(busy)) as pool:
            latencies_s = np.concatenate(list(pool.map(work, busy)))
        return sample(latencies_s, len(latencies_s) * load.batch / (perf_counter() - begin), None)

    return measure
