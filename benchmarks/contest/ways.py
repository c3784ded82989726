"""The best way to classify images: images per call, and the sharing of the cores."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks.contest.runtimes import Setup
from benchmarks.measure.machine import cores

if TYPE_CHECKING:
    from benchmarks.contest.programs import Program
    from export.equivalence import Images

MICRO_BATCHES = (16, 32, 64, 128, 256)
SEARCH_IMAGES = 2560
SEARCH_ROUNDS = 3


@dataclass(frozen=True)
class Way:
    micro_batch: int
    workers: int

    def __str__(self) -> str:
        return f"{self.micro_batch} a call, {self.workers} x {cores() // self.workers} threads"


def best_way(program: Program, images: Images) -> Way:
    from benchmarks.measure.timing import time_interleaved

    ways = [Way(size, workers) for size in MICRO_BATCHES for workers in sorted({1, cores()})]
    part = images[:SEARCH_IMAGES]
    runs = {str(way): runner(program, way, part) for way in ways}
    measured = time_interleaved(runs, 0.001, min_rounds=SEARCH_ROUNDS)
    return min(ways, key=lambda way: measured[str(way)].percentile_ms(50))


def best_micro_batch(make: Callable[[Images, int], Callable[[], object]], images: Images) -> int:
    """`make(images, size)` gives a call in batches of that size."""
    from benchmarks.measure.timing import time_interleaved

    parts = {size: images[:SEARCH_IMAGES] for size in MICRO_BATCHES if size < len(images)} | {len(images): images}
    runs = {str(size): make(part, size) for size, part in parts.items()}
    measured = time_interleaved(runs, 0.001, min_rounds=SEARCH_ROUNDS)
    return min(parts, key=lambda size: measured[str(size)].percentile_ms(50) / len(parts[size]))


def runner(program: Program, way: Way, images: Images) -> Callable[[], None]:
    from benchmarks.contest.engines import start

    batches = [images[i : i + way.micro_batch] for i in range(0, len(images), way.micro_batch)]
    setup = Setup(threads=cores() // way.workers)
    workers = [start(program, setup) for _ in range(way.workers)]
    pool = ThreadPoolExecutor(way.workers)

    def share(worker: int) -> None:
        for batch in batches[worker :: way.workers]:
            workers[worker](batch)

    def run() -> None:
        list(pool.map(share, range(way.workers)))

    return run
