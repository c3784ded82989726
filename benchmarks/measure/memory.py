"""Peak memory of a task in a fresh process, libraries included."""

from __future__ import annotations

import re
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path


def peak_memory_mb(work: Callable[[], object]) -> float:
    """`work` must pickle."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(_work_and_report_mb, work).result()


def _work_and_report_mb(work: Callable[[], object]) -> float:
    work()
    # Not getrusage: its maximum includes the parent's memory at the fork.
    status = Path("/proc/self/status").read_text()
    return int(re.findall(r"VmHWM:\s+(\d+) kB", status)[0]) * 1024 / 1e6
