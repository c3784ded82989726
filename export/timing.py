"""Times two ONNX files in alternating calls, so a drift of the machine hits both."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import onnx_ir as ir

from export.compiler.proof.inputs import draw, first_dimensions
from export.compiler.proof.runs import Runner

BATCHES = (1, 8)
SECONDS = 4.0
LEAST, MOST = 7, 200  # calls per file


@dataclass(frozen=True)
class Timed:
    sizes: Mapping[str, int]
    before_ms: float
    after_ms: float
    calls: int

    def __str__(self) -> str:
        at = ", ".join(f"{name}={size}" for name, size in self.sizes.items()) or "fixed sizes"
        ratio = self.before_ms / self.after_ms
        return f"{at}: {self.before_ms:.2f} -> {self.after_ms:.2f} ms, {ratio:.2f} times as fast ({self.calls} calls)"


def time_both(before: Path, after: Path, graph: ir.Graph, sizes: Mapping[str, int]) -> tuple[Timed, ...]:
    first = first_dimensions(graph)
    asked = [{**sizes, **dict.fromkeys(first, batch)} for batch in BATCHES] if first else [dict(sizes)]
    runners = Runner(before, packed=True), Runner(after, packed=True)
    timed = []
    for chosen in asked:
        feeds = draw(graph, chosen)
        started = time.perf_counter()
        for runner in runners:
            runner(feeds)
        calls = min(MOST, max(LEAST, int(SECONDS / (time.perf_counter() - started))))
        taken: tuple[list[int], list[int]] = ([], [])
        for number in range(calls):
            for position in (0, 1) if number % 2 else (1, 0):
                start = time.perf_counter_ns()
                runners[position].session.run(None, feeds)
                taken[position].append(time.perf_counter_ns() - start)
        slow, quick = (statistics.median(samples) / 1e6 for samples in taken)
        timed.append(Timed(chosen, slow, quick, calls))
    return tuple(timed)
