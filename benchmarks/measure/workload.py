"""How a candidate is called; the best way is found by a short search."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from benchmarks.measure.candidate import Candidate, start
from benchmarks.measure.machine import cores

if TYPE_CHECKING:
    from benchmarks.measure.networks import Program
    from export.equivalence import Images

MICRO_BATCHES = (16, 32, 64, 128, 256)
SEARCH_IMAGES = 2560
SEARCH_ROUNDS = 3


@dataclass(frozen=True)
class Workload:
    """`batch` images, `micro_batch` of them a call (None: all, auto: as many as is quickest), calls in flight."""

    batch: int
    micro_batch: int | Literal["auto"] | None = None
    in_flight: int = 1

    def sizes(self) -> set[int]:
        """Images of all calls, those of the search included."""
        if self.micro_batch == "auto":
            steps = {size for size in MICRO_BATCHES if size < self.batch} | {self.batch}
        else:
            steps = {min(self.batch, self.micro_batch or self.batch)}
        searched = {min(self.batch, SEARCH_IMAGES)} if self.micro_batch == "auto" else set()
        return steps | {total % step for step in steps for total in (self.batch, *searched) if total % step}

    def __str__(self) -> str:
        return f"{self.micro_batch} a call, {self.in_flight} x {cores() // self.in_flight} threads"


def best_workload(program: Program, candidate: Candidate, images: Images) -> Workload:
    """Of calls by one thread or a thread per core."""
    from benchmarks.measure.timing import time_interleaved

    ways = [Workload(len(images), size, at_once) for size in MICRO_BATCHES for at_once in sorted({1, cores()})]
    part = images[:SEARCH_IMAGES]
    runs = {str(way): runner(program, candidate, way, part) for way in ways}
    measured = time_interleaved(runs, 0.001, min_rounds=SEARCH_ROUNDS)
    return min(ways, key=lambda way: measured[str(way)].percentile_ms(50))


def best_micro_batch(make: Callable[[Images, int], Callable[[], object]], images: Images) -> int:
    """`make(images, size)` gives a call in batches of that size."""
    from benchmarks.measure.timing import time_interleaved

    parts = {size: images[:SEARCH_IMAGES] for size in MICRO_BATCHES if size < len(images)} | {len(images): images}
    runs = {str(size): make(part, size) for size, part in parts.items()}
    measured = time_interleaved(runs, 0.001, min_rounds=SEARCH_ROUNDS)
    return min(parts, key=lambda size: measured[str(size)].percentile_ms(50) / len(parts[size]))


def runner(program: Program, candidate: Candidate, workload: Workload, images: Images) -> Callable[[], None]:
    """A call in flight has a copy of the program and its share of the cores."""
    size, at_once = int(workload.micro_batch or len(images)), workload.in_flight
    batches = [images[i : i + size] for i in range(0, len(images), size)]
    copy = replace(candidate, threads=cores() // at_once)
    workers = [start(program, copy) for _ in range(at_once)]
    pool = ThreadPoolExecutor(at_once)

    def share(worker: int) -> None:
        for batch in batches[worker::at_once]:
            workers[worker](batch)

    def run() -> None:
        list(pool.map(share, range(at_once)))

    return run
