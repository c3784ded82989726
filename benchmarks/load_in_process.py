"""The same ONNX file in this process, loaded as the server is: what a server could answer at best.

In: the file, images, and how the cores are shared. Out: the function that measures a closed loop, in which no more
requests are in flight than there are instances: nothing could answer them.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter
from typing import TYPE_CHECKING

from benchmarks.load import Load, Measure, Sample, Way, sample

if TYPE_CHECKING:
    from export.equivalence import Classifier, Images


def measurer(data: bytes, images: Images, way: Way) -> Measure:
    """As many sessions as the way has instances, each in a thread of its own; images are uint8 (n, C, H, W)."""
    import numpy as np

    from benchmarks.contestants import start

    threads = way.threads or len(os.sched_getaffinity(0))
    sessions: list[Classifier] = [start(data, "cpu", threads) for _ in range(way.instances)]

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
