"""Targets on the server and in process take turns under every load."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.load import by_asyncio, by_perf_analyzer
from benchmarks.load import in_process as alone
from benchmarks.load.published import Published, check
from benchmarks.load.terms import InProcess, LeftOut, Load, Measure, Sample, Target, Turn, in_process
from benchmarks.measure.progress import steps

if TYPE_CHECKING:
    from benchmarks.contest.runtimes import Device
    from export.equivalence import Images
    from serving.running import Server

IMAGES = 64  # real images; larger batches repeat them


@dataclass(frozen=True)
class Outcome:
    """Samples of measured turns, reasons of turns left out."""

    samples: dict[Turn, list[Sample]]
    left_out: dict[Turn, str]


def checked(
    targets: Sequence[Target],
    published: Mapping[str, Published],
    server: Server,
    generator: str,
    folder: Path,
    device: Device = "cpu",
) -> dict[Target | InProcess, Measure]:
    """A measuring function for each target and its process, after comparing their answers; raises Failed."""
    from benchmarks.contest.engines import start
    from benchmarks.contest.subjects import example_images
    from clients.classifier import Classifier

    measures: dict[Target | InProcess, Measure] = {}
    for target in targets:
        model = published[target.model]
        images = example_images(model.config, IMAGES)
        url = server.grpc_url if target.protocol == "grpc" else server.http_url
        with Classifier(url, target.served_name, target.protocol, shared_memory=target.shared_memory) as classifier:
            check(target, classifier, images, start(model.data)(images))
        measures[target] = _measurer(server, target, images, generator, folder)
        same = InProcess(target.model, target.sharing)
        measures[same] = measures.get(same) or alone.measurer(model, images, target.sharing, device)
    return measures


def _measurer(server: Server, target: Target, images: Images, generator: str, folder: Path) -> Measure:
    if generator == "asyncio":
        return by_asyncio.measurer(server, target, images)
    path = folder / f"{target.model}.json"
    by_perf_analyzer.write_images(path, images)
    return by_perf_analyzer.measurer(server, target, path)


def turns(targets: Sequence[Target], loads: Sequence[Load]) -> list[Turn]:
    """Pairs of target and load, in order; one in-process turn serves several targets."""
    everybody: list[Turn] = []
    for load, target in product(loads, targets):
        everybody += [(target, load)] if load.in_flight is None else [in_process(target, load), (target, load)]
    return list(dict.fromkeys(everybody))


def take(
    measures: Mapping[Target | InProcess, Measure], order: Sequence[Turn], seconds: float, rounds: int
) -> Iterator[Outcome]:
    """Measures every turn once a round; yields all samples after each round."""
    outcome = Outcome({turn: [] for turn in order}, {})
    for number in range(rounds):
        for turn in steps(order, f"round {number + 1} of {rounds}"):
            if turn not in outcome.left_out:
                who, load = turn
                try:
                    outcome.samples[turn].append(measures[who](load, seconds))
                except LeftOut as reason:
                    outcome.left_out[turn] = str(reason)
                    del outcome.samples[turn]
        yield outcome
