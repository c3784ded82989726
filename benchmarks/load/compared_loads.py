"""Measures cells in turns, on the server and in this process; a failed cell loses only its figures.

In: cells, each a candidate under a workload. Out: the rows after each round.
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
from benchmarks.load.errors import Failed, WrongAnswer
from benchmarks.load.labels import served_name, transport
from benchmarks.load.published_candidates import IMAGES, Published, check, publish, server_arguments
from benchmarks.measure.candidate import Candidate
from benchmarks.measure.engines import why_not
from benchmarks.measure.progress import note, one_line, steps
from benchmarks.measure.workload import IN_PROCESS, Workload

if TYPE_CHECKING:
    from benchmarks.measure.run import Row
    from export.equivalence import Logits
    from serving.local_server import Server

Cell = tuple[Candidate, Workload]
Taken = dict[Cell, "list[dict[str, float]] | Exception"]
"""The figures of each round, or why a cell has none."""


def run(cells: Sequence[Cell], seconds: float, rounds: int) -> Iterator[list[Row]]:
    """Raises Failed if no cell can be measured."""
    from serving.local_server import running_server

    with tempfile.TemporaryDirectory() as folder:
        published, lost = publish_all(cells, Path(folder, "repository"))
        if not published:
            raise Failed(one_line(next(iter(lost.values()))))
        arguments = server_arguments(any(workload.shared_memory != "none" for _, workload in cells))
        with running_server(Path(folder, "repository"), arguments) as server:
            bench = Bench(published, server, Path(folder))
            order = turns(cells)
            lost |= bench.check([cell for cell in order if cell not in lost])
            if all(cell in lost for cell in cells):
                raise Failed(one_line(next(error for cell, error in lost.items() if cell in cells)))
            took_s = sum(cell not in lost for cell in order) * rounds * seconds
            note(f"{len(order)} loads, {rounds} rounds of {seconds:g} s each: about {took_s:.0f} s")
            for taken in take(bench.measure, order, seconds, rounds, lost):
                yield rows(taken)


def turns(cells: Sequence[Cell]) -> list[Cell]:
    """The cells, each closed loop after the same load in process, which several closed loops may share."""
    order: list[Cell] = []
    for candidate, workload in cells:
        order += [(candidate, workload.alone())] if workload.in_flight else []
        order.append((candidate, workload))
    return list(dict.fromkeys(order))


def publish_all(cells: Sequence[Cell], repository: Path) -> tuple[dict[Candidate, Published], dict[Cell, Exception]]:
    """What was published, by candidate, and why cells were lost. Candidates that differ in threads share an export."""
    published: dict[Candidate, Published] = {}
    lost: dict[Cell, Exception] = {}
    largest = max(workload.batch for _, workload in cells)
    for form in dict.fromkeys(replace(candidate, threads=0) for candidate, _ in cells):
        alike = [cell for cell in turns(cells) if replace(cell[0], threads=0) == form]
        names = {served_name(*cell): (cell[1].instances, cell[0].threads) for cell in alike}
        try:
            if reason := why_not(form):
                raise Failed(reason)
            made = publish(form, repository, names, largest)
            published |= {candidate: made for candidate, _ in alike}
        except Exception as error:  # engines raise anything; only this form is lost
            lost |= dict.fromkeys(alike, error)
    return published, lost


@dataclass(frozen=True)
class Bench:
    """A server with the published candidates. `copies`: instances in this process, by candidate and their number."""

    published: Mapping[Candidate, Published]
    server: Server
    folder: Path
    copies: dict[tuple[Candidate, int], list[in_process.Instance]] = field(default_factory=dict)

    def check(self, cells: Sequence[Cell]) -> dict[Cell, Exception]:
        """The errors of cells with wrong answers. Compares once for cells that differ only in their load."""
        wrong: dict[Cell, Exception] = {}
        by_name: dict[str, list[Cell]] = {}
        for cell in cells:
            by_name.setdefault(named(*cell), []).append(cell)
        for alike in by_name.values():
            try:
                self._check(*alike[0])
            except Exception as error:  # engines raise anything
                wrong |= dict.fromkeys(alike, error)
        return wrong

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
        check(named(candidate, workload), logits, expected, candidate.precision)

    def measure(self, candidate: Candidate, workload: Workload, seconds: float) -> dict[str, float]:
        images = candidate.network.examples(IMAGES)
        if workload.protocol == IN_PROCESS:
            return in_process.measure(self._copies(candidate, workload), workload, images, seconds)
        return by_perf_analyzer.measure(self.server, candidate, workload, images, seconds, self.folder)

    def _copies(self, candidate: Candidate, workload: Workload) -> list[in_process.Instance]:
        key = (candidate, workload.instances)
        if key not in self.copies:
            self.copies[key] = in_process.instances(self.published[candidate], *key)
        return self.copies[key]


def named(candidate: Candidate, workload: Workload) -> str:
    return f"{served_name(candidate, workload)}, {transport(asdict(workload))}"


def take(
    measure: Callable[[Candidate, Workload, float], dict[str, float]],
    order: Sequence[Cell],
    seconds: float,
    rounds: int,
    lost: Mapping[Cell, Exception] = MappingProxyType({}),
) -> Iterator[Taken]:
    """Yields all figures after each round. Raises Failed if no cell is left."""
    taken: Taken = {cell: lost.get(cell) or [] for cell in order}
    for line in dict.fromkeys(f"{named(*cell)}: {one_line(error)}" for cell, error in lost.items()):
        note(f"Not measured: {line}")
    for number in range(rounds):
        left = [(cell, figures) for cell, figures in taken.items() if isinstance(figures, list)]
        for cell, figures in steps(left, f"round {number + 1} of {rounds}"):
            try:
                figures.append(measure(*cell, seconds))
            except Exception as error:  # engines raise anything
                taken[cell] = error
        if all(isinstance(figures, Exception) for figures in taken.values()):
            first = next(error for error in taken.values() if isinstance(error, Exception))
            raise Failed(f"nothing was measured: {one_line(first)}")
        yield taken


def rows(taken: Taken) -> list[Row]:
    """Medians over the rounds; then the cells that were left out."""
    measured: list[Row] = []
    missing: list[Row] = []
    for (candidate, workload), figures in taken.items():
        cell = candidate.row | asdict(workload)
        if isinstance(figures, Exception):
            wrong = {"wrong_answer": True} if isinstance(figures, WrongAnswer) else {}
            missing.append({**cell, "reason": one_line(figures), **wrong})
        elif workload.protocol != IN_PROCESS:
            alone = taken.get((candidate, workload.alone()), []) if workload.in_flight else []
            measured.append(cell | _medians(figures, [] if isinstance(alone, Exception) else alone))
    return measured + missing


def _medians(figures: Sequence[dict[str, float]], alone: Sequence[dict[str, float]]) -> dict[str, Any]:
    middle: dict[str, Any] = {name: float(median(each[name] for each in figures)) for name in figures[0]}
    images_per_s, p50_ms = (median([each[n] for each in alone] or [nan]) for n in ("images_per_s", "p50_ms"))
    compared = {
        "in_process_images_per_s": images_per_s,
        "in_process_p50_ms": p50_ms,
        "of_in_process": middle["images_per_s"] / images_per_s,
        "added_ms": middle["p50_ms"] - p50_ms,
    }
    return {
        **middle,
        **(compared if alone else dict.fromkeys(compared)),
        "rounds_images_per_s": [each["images_per_s"] for each in figures],
        "rounds_p50_ms": [each["p50_ms"] for each in figures],
        "rounds_in_process_images_per_s": [each["images_per_s"] for each in alone],
    }
