"""How much memory a program takes at its peak, libraries included. In: a program. Out: MB of a fresh process."""

from __future__ import annotations

import re
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmarks.contestants import Program
    from benchmarks.runtimes import Engine, Precision
    from export.equivalence import Images


def peak_memory_mb(
    program: Program,
    images: Images,
    micro_batch: int,
    threads: int,
    engine: Engine | None = None,
    precision: Precision = "fp32",
) -> float:
    """Peak resident memory in MB of a process that classifies `images` once on the CPU."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(_classify_and_report_mb, program, images, micro_batch, threads, engine, precision).result()


def _classify_and_report_mb(
    program: Program, images: Images, micro_batch: int, threads: int, engine: Engine | None, precision: Precision
) -> float:
    from benchmarks.calls import classify
    from benchmarks.contestants import start

    classify(start(program, "cpu", threads, engine, precision), images, micro_batch, "cpu")
    # Not getrusage: its maximum begins with the memory of the process that this one was forked from.
    status = Path("/proc/self/status").read_text()
    return int(re.findall(r"VmHWM:\s+(\d+) kB", status)[0]) * 1024 / 1e6
