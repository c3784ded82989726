"""Measures loads in turns, on the server and in this process.

In: cells; a cell is a candidate under a workload. Out: the rows after each round. A cell that fails gets a row with the
reason, and the other cells go on.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from math import nan
from pathlib import Path
from statistics import median
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from benchmarks.load import by_perf_analyzer, in_process
from benchmarks.load.published_candidates import (
    IMAGES,
    Failed,
    Published,
    WrongAnswer,
    check,
    publish,
    server_arguments,
)
from benchmarks.measure.candidate import Candidate
from benchmarks.measure.engines import why_not
from benchmarks.measure.progress import note, one_line, steps
from benchmarks.measure.workload_settings import IN_PROCESS, Workload, served_name, transport

if TYPE_CHECKING:
    from benchmarks.measure.result_file import Row
    from export.compare_logits import Logits
    from serving.local_server import Server

Cell = tuple[Candidate, Workload]
Results = dict[Cell, "list[dict[str, float]] | Exception"]
"""Cell -> its figures in each round, or why it failed."""


def run(cells: Sequence[Cell], seconds: float, rounds: int) -> Iterator[list[Row]]:
    """Publishes and checks the cells, then yields their rows after each round. Raises Failed if every cell fails."""
    from serving.local_server import running_server

    with tempfile.TemporaryDirectory() as folder:
        published, failures = publish_all(cells, Path(folder, "repository"))
        if not published:
            raise Failed(one_line(next(iter(failures.values()))))
        arguments = server_arguments(any(workload.shared_memory != "none" for _, workload in cells))
        with running_server(Path(folder, "repository"), arguments) as server:
            bench = Bench(published, server, Path(folder))
            order = with_loads_in_process(cells)
            failures |= bench.check([cell for cell in order if cell not in failures])
            if all(cell in failures for cell in cells):
                raise Failed(one_line(next(error for cell, error in failures.items() if cell in cells)))
            total_s = sum(cell not in failures for cell in order) * rounds * seconds
            note(f"{len(order)} loads, {rounds} rounds of {seconds:g} s each: about {total_s:.0f} s")
            for results in measure_rounds(bench.measure, order, seconds, rounds, failures):
                yield rows(results)


def with_loads_in_process(cells: Sequence[Cell]) -> list[Cell]:
    """The cells, and before each closed loop the same load in this process. Closed loops share equal loads."""
    order: list[Cell] = []
    for candidate, workload in cells:
        order += [(candidate, workload.alone())] if workload.in_flight else []
        order.append((candidate, workload))
    return list(dict.fromkeys(order))


def publish_all(cells: Sequence[Cell], repository: Path) -> tuple[dict[Candidate, Published], dict[Cell, Exception]]:
    """Candidate -> what was published, and cell -> why it failed. Candidates that differ in threads share an export."""
    published: dict[Candidate, Published] = {}
    failures: dict[Cell, Exception] = {}
    largest = max(workload.batch for _, workload in cells)
    for export in dict.fromkeys(replace(candidate, threads=0) for candidate, _ in cells):
        sharing = [cell for cell in with_loads_in_process(cells) if replace(cell[0], threads=0) == export]
        names = {served_name(*cell): (cell[1].instances, cell[0].threads) for cell in sharing}
        try:
            if reason := why_not(export):
                raise Failed(reason)
            files = publish(export, repository, names, largest)
            published |= {candidate: files for candidate, _ in sharing}
        except Exception as error:  # engines raise anything; the other exports go on
            failures |= dict.fromkeys(sharing, error)
    return published, failures


@dataclass(frozen=True)
class Bench:
    """A server with the published candidates, and copies of them in this process.

    `copies`: (candidate, number of instances) -> the instances in this process. `folder`: for perf_analyzer's files.
    """

    published: Mapping[Candidate, Published]
    server: Server
    folder: Path
    copies: dict[tuple[Candidate, int], list[in_process.Instance]] = field(default_factory=dict)

    def check(self, cells: Sequence[Cell]) -> dict[Cell, Exception]:
        """Cell -> why its answers are wrong. Cells that differ only in their load share a comparison."""
        errors: dict[Cell, Exception] = {}
        by_name: dict[str, list[Cell]] = {}
        for cell in cells:
            by_name.setdefault(cell_name(*cell), []).append(cell)
        for sharing in by_name.values():
            try:
                self._check(*sharing[0])
            except Exception as error:  # engines raise anything
                errors |= dict.fromkeys(sharing, error)
        return errors

    def _check(self, candidate: Candidate, workload: Workload) -> None:
        from benchmarks.measure.engines import start
        from clients.classifier import Classifier, Options

        images = candidate.network.examples(IMAGES)
        if workload.protocol == IN_PROCESS:
            logits = self._copies(candidate, workload)[0].logits(images, IMAGES)
        else:
            if workload.shared_memory == "cuda" and candidate.device == "cpu":
                raise Failed("CUDA shared memory: expected a GPU, found cpu")
            options = Options(*workload.address(self.server))
            with Classifier(options, served_name(candidate, workload)) as classifier:
                logits = classifier.logits(images)
        expected: Logits = start(self.published[candidate].data)(images)
        check(cell_name(candidate, workload), logits, expected, candidate.precision)

    def measure(self, candidate: Candidate, workload: Workload, seconds: float) -> dict[str, float]:
        """The figures of a cell: images a second and latencies in ms. Raises Failed."""
        images = candidate.network.examples(IMAGES)
        if workload.protocol == IN_PROCESS:
            return in_process.measure(self._copies(candidate, workload), workload, images, seconds)
        return by_perf_analyzer.measure(self.server, candidate, workload, images, seconds, self.folder)

    def _copies(self, candidate: Candidate, workload: Workload) -> list[in_process.Instance]:
        key = (candidate, workload.instances)
        if key not in self.copies:
            published = self.published[candidate]
            self.copies[key] = [in_process.start_instance(published, candidate) for _ in range(workload.instances)]
        return self.copies[key]


def cell_name(candidate: Candidate, workload: Workload) -> str:
    """The model on the server and the transport, for messages."""
    return f"{served_name(candidate, workload)}, {transport(asdict(workload))}"


def measure_rounds(
    measure: Callable[[Candidate, Workload, float], dict[str, float]],
    order: Sequence[Cell],
    seconds: float,
    rounds: int,
    failures: Mapping[Cell, Exception] = MappingProxyType({}),
) -> Iterator[Results]:
    """Yields the results of all cells after each round. Raises Failed once every cell has failed.

    `failures`: cells that are not measured.
    """
    results: Results = {cell: failures.get(cell) or [] for cell in order}
    for line in dict.fromkeys(f"{cell_name(*cell)}: {one_line(error)}" for cell, error in failures.items()):
        note(f"Not measured: {line}")
    for number in range(rounds):
        measurable = [(cell, figures) for cell, figures in results.items() if isinstance(figures, list)]
        for cell, figures in steps(measurable, f"round {number + 1} of {rounds}"):
            try:
                figures.append(measure(*cell, seconds))
            except Exception as error:  # engines raise anything
                results[cell] = error
        if all(isinstance(figures, Exception) for figures in results.values()):
            first = next(error for error in results.values() if isinstance(error, Exception))
            raise Failed(f"nothing was measured: {one_line(first)}")
        yield results


def rows(results: Results) -> list[Row]:
    """Rows of medians over the rounds; after them the rows of cells that failed."""
    measured: list[Row] = []
    missing: list[Row] = []
    for (candidate, workload), figures in results.items():
        cell = candidate.row | asdict(workload)
        if isinstance(figures, Exception):
            wrong = {"wrong_answer": True} if isinstance(figures, WrongAnswer) else {}
            missing.append({**cell, "reason": one_line(figures), **wrong})
        elif workload.protocol != IN_PROCESS:
            baseline = results.get((candidate, workload.alone()), []) if workload.in_flight else []
            measured.append(cell | _medians(figures, [] if isinstance(baseline, Exception) else baseline))
    return measured + missing


def _medians(on_server: Sequence[dict[str, float]], baseline: Sequence[dict[str, float]]) -> dict[str, Any]:
    """Medians over the figures of rounds, compared with `baseline`, the rounds in process, unless there are none."""
    medians: dict[str, Any] = {name: float(median(figures[name] for figures in on_server)) for name in on_server[0]}
    rates = [figures["images_per_s"] for figures in baseline]
    images_per_s = median(rates or [nan])
    p50_ms = median([figures["p50_ms"] for figures in baseline] or [nan])
    comparison = {
        "in_process_images_per_s": images_per_s,
        "in_process_p50_ms": p50_ms,
        "of_in_process": medians["images_per_s"] / images_per_s,
        "added_ms": medians["p50_ms"] - p50_ms,
    }
    return {
        **medians,
        **(comparison if baseline else dict.fromkeys(comparison)),
        "rounds_images_per_s": [figures["images_per_s"] for figures in on_server],
        "rounds_p50_ms": [figures["p50_ms"] for figures in on_server],
        "rounds_in_process_images_per_s": rates,
    }
