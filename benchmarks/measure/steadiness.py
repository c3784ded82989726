"""Whether a machine gives the same times again: two threads against one, and the spread of single images.

In: a network's file and the seconds to watch. Out: a `Steadiness`. Shared cores work as one for seconds to minutes, so
the machine is watched for about a minute, and the windows of that minute are compared.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from export.interleaved import time_ns, turn_ns

GEMM_S, SINGLES = 0.4, 200  # in a window: seconds of products for each number of threads, single images
SPEEDUP = 0.8  # at least, as a share of the number of threads
WINDOWS_SPREAD = 0.1  # at most, as a share of the median: from the tenth to the ninetieth percentile of the windows
SINGLES_SPREAD = 1.3  # at most: p90 over p50 of single images, in the median window


@dataclass(frozen=True)
class Steadiness:
    """A figure for each window. `gemm_*`: GFLOP/s of a float32 product of 2048^3. `singles_spread`: p90 over p50."""

    threads: int
    gemm_one_thread: tuple[float, ...]
    gemm_all_threads: tuple[float, ...]
    singles_p50_ms: tuple[float, ...]
    singles_spread: tuple[float, ...]

    @property
    def speedup(self) -> float:
        return float(np.median(self.gemm_all_threads) / np.median(self.gemm_one_thread))

    def reasons(self) -> list[str]:
        """Why the machine is not steady; empty if it is."""
        told = []
        if self.speedup < SPEEDUP * self.threads:
            told.append(
                f"{self.threads} threads multiply {self.speedup:.2f} times as fast as one, "
                f"expected at least {SPEEDUP * self.threads:.1f}"
            )
        watched = {
            "products of one thread": self.gemm_one_thread,
            f"products of {self.threads} threads": self.gemm_all_threads,
            "single images": self.singles_p50_ms,
        }
        for what, windows in watched.items():
            if (apart := spread(windows)) > WINDOWS_SPREAD:
                told.append(f"{what}: windows differ by {apart:.0%}, expected at most {WINDOWS_SPREAD:.0%}")
        if (apart := float(np.median(self.singles_spread))) > SINGLES_SPREAD:
            told.append(f"single images: p90 is {apart:.2f} times p50, expected at most {SINGLES_SPREAD}")
        return told

    def row(self) -> dict[str, Any]:
        """The machine's row in a result."""
        return {"steady": not self.reasons(), "reasons": self.reasons(), "speedup": self.speedup, **asdict(self)}


def spread(windows: Sequence[float]) -> float:
    """Between the tenth and the ninetieth percentile, relative to the median."""
    low, middle, high = np.percentile(windows, (10, 50, 90))
    return float((high - low) / middle)


def watch(data: bytes, image: Any, threads: int, seconds: float, show: Callable[[float], object]) -> Steadiness:
    """`data`: an ONNX file that reads `image` (1, C, H, W) uint8; `show` gets the share that is done."""
    from benchmarks.measure.roofline import SIDE, gemms
    from export.equivalence import onnx_classifier

    products = {count: gemms(count)[f"{SIDE['cpu']}^3 in ONNX Runtime"] for count in {1, threads}}
    classify = onnx_classifier(data, threads)
    rates: dict[int, list[float]] = {count: [] for count in products}
    p50: list[float] = []
    apart: list[float] = []
    start = time.perf_counter()
    while (gone := time.perf_counter() - start) < seconds or len(p50) < 3:
        for count, (run, flops) in products.items():
            rates[count].append(flops / float(np.median(turn_ns(run, GEMM_S))))
        calls_ns = [time_ns(lambda: classify(image)) for _ in range(SINGLES)]
        middle, high = np.percentile(calls_ns, (50, 90))
        p50.append(float(middle) / 1e6)
        apart.append(float(high / middle))
        show(gone / seconds)
    return Steadiness(threads, tuple(rates[1]), tuple(rates[threads]), tuple(p50), tuple(apart))
