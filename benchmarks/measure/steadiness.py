"""Whether a machine gives the same times again: the speed of all threads against one, and the spread of single images.

In: a network's file and the seconds to watch. Out: the row of a result. The cores of a shared machine may work as one
for seconds to minutes, so the machine is watched for about a minute, and windows of that minute are compared.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from export.interleaved import time_ns, turn_ns

GEMM_S, SINGLES = 0.4, 200  # of a window: seconds of products for each number of threads; single images
SINGLE_IMAGES = "single images"
SPEEDUP = 0.8  # at least, as a share of the number of threads
WINDOWS_SPREAD = 0.1  # at most, as a share of the median: from the tenth to the ninetieth percentile of the windows
SINGLES_SPREAD = 1.3  # at most: p90 over p50 of single images, in the median window


def judged(figures: Mapping[str, Any]) -> dict[str, Any]:
    """The figures as a row that says whether the machine is steady; its `reasons`, why not, are empty if it is.

    `figures`: `threads`, and of each window `gemm_*`, GFLOP/s of a float32 product of 2048^3, `singles_p50_ms` of calls
    with an image, and `singles_spread`, their p90 over p50.
    """
    threads, reasons = figures["threads"], list[str]()
    speedup = float(np.median(figures["gemm_all_threads"]) / np.median(figures["gemm_one_thread"]))
    if speedup < SPEEDUP * threads:
        fast = f"{threads} threads multiply {speedup:.2f} times as fast as one"
        reasons.append(f"{fast}, expected at least {SPEEDUP * threads:.1f}")
    for what, windows in watched(figures).items():
        if (difference := spread(windows)) > WINDOWS_SPREAD:
            reasons.append(f"{what}: windows differ by {difference:.0%}, expected at most {WINDOWS_SPREAD:.0%}")
    if (ratio := float(np.median(figures["singles_spread"]))) > SINGLES_SPREAD:
        reasons.append(f"{SINGLE_IMAGES}: p90 is {ratio:.2f} times p50, expected at most {SINGLES_SPREAD}")
    return {"steady": not reasons, "reasons": reasons, "speedup": speedup, **figures}


def watched(figures: Mapping[str, Any]) -> dict[str, Sequence[float]]:
    """What is watched -> its figure in each window, in GFLOP/s, or in ms for SINGLE_IMAGES.

    `figures`: as in `judged`.
    """
    return {
        "products of one thread": figures["gemm_one_thread"],
        f"products of {figures['threads']} threads": figures["gemm_all_threads"],
        SINGLE_IMAGES: figures["singles_p50_ms"],
    }


def spread(windows: Sequence[float]) -> float:
    """The distance from the tenth to the ninetieth percentile, relative to the median."""
    p10, p50, p90 = np.percentile(windows, (10, 50, 90))
    return float((p90 - p10) / p50)


def watch(data: bytes, image: Any, threads: int, seconds: float, show: Callable[[float], object]) -> dict[str, Any]:
    """The row of windows that are measured for `seconds`, at least three.

    `data`: an ONNX file that classifies `image`, uint8 (1, C, H, W). `show` is called with the share that is done.
    """
    from benchmarks.measure.peak_flops_and_bandwidth import SIDE, gemms
    from export.compare_logits import onnx_classifier

    products = {count: gemms(count)[f"{SIDE['cpu']}^3 in ONNX Runtime"] for count in {1, threads}}
    classify = onnx_classifier(data, threads)
    rates: dict[int, list[float]] = {count: [] for count in products}
    p50_ms: list[float] = []
    spreads: list[float] = []
    start = time.perf_counter()
    while (elapsed_s := time.perf_counter() - start) < seconds or len(p50_ms) < 3:
        for count, (run, flops) in products.items():
            rates[count].append(flops / float(np.median(turn_ns(run, GEMM_S))))
        calls_ns = [time_ns(lambda: classify(image)) for _ in range(SINGLES)]
        p50_ns, p90_ns = np.percentile(calls_ns, (50, 90))
        p50_ms.append(float(p50_ns) / 1e6)
        spreads.append(float(p90_ns / p50_ns))
        show(elapsed_s / seconds)
    gemms_per_s = {"gemm_one_thread": rates[1], "gemm_all_threads": rates[threads]}
    return judged({"threads": threads, **gemms_per_s, "singles_p50_ms": p50_ms, "singles_spread": spreads})
