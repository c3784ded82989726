"""Targets on the server and in process take turns under every load; a failure costs only its own figures."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from benchmarks.contest.runtimes import Device, why_not
from benchmarks.load import by_asyncio, by_perf_analyzer
from benchmarks.load import in_process as alone
from benchmarks.load.published import IMAGES, Published, check, publish, server_arguments
from benchmarks.load.terms import (
    Failed,
    Form,
    InProcess,
    Load,
    Measure,
    Sample,
    Target,
    Turn,
    WrongAnswer,
    in_process,
)
from benchmarks.measure.progress import note, one_line, steps

if TYPE_CHECKING:
    from export.equivalence import Images, Logits
    from serving.running import Server

Who = Target | InProcess


@dataclass(frozen=True)
class Plan:
    targets: Sequence[Target]
    loads: Sequence[Load]
    generator: str
    seconds: float
    rounds: int
    device: Device = "cpu"


@dataclass(frozen=True)
class Outcome:
    samples: dict[Turn, list[Sample]]
    left_out: dict[Turn, str]
    wrong: bool = False


def run(plan: Plan) -> Iterator[Outcome]:
    """Yields after each round; raises Failed if no target can be measured."""
    from serving.running import running_server

    with tempfile.TemporaryDirectory() as folder:
        published, lost = _published(plan, Path(folder, "repository"))
        if not published:
            raise Failed(one_line(next(iter(lost.values()))))
        with running_server(Path(folder, "repository"), server_arguments()) as server:
            measures, faulty = checked(plan, published, server, Path(folder))
            if not any(isinstance(who, Target) for who in measures):
                raise Failed(one_line(next(error for who, error in faulty.items() if isinstance(who, Target))))
            order = turns(plan.targets, plan.loads)
            faulty |= {who: lost[who.form] for who, _ in order if who.form in lost}
            took_s = sum(who in measures for who, _ in order) * plan.rounds * plan.seconds
            note(f"{len(order)} loads, {plan.rounds} rounds of {plan.seconds:g} s each: about {took_s:.0f} s")
            for outcome in take(measures, order, plan.seconds, plan.rounds, faulty):
                yield outcome
                if not outcome.samples:
                    raise Failed(f"nothing was measured: {next(iter(outcome.left_out.values()))}")


def _published(plan: Plan, repository: Path) -> tuple[dict[Form, Published], dict[Form, Exception]]:
    published: dict[Form, Published] = {}
    lost: dict[Form, Exception] = {}
    for form in dict.fromkeys(target.form for target in plan.targets):
        names = {target.served_name: target.sharing for target in plan.targets if target.form == form}
        try:
            if reason := why_not(form.engine, form.precision, plan.device):
                raise Failed(reason)
            published[form] = publish(form, repository, names, plan.device, max(load.batch for load in plan.loads))
        except Exception as error:  # engines raise anything; only this form is lost
            lost[form] = error
    return published, lost


def checked(
    plan: Plan, published: Mapping[Form, Published], server: Server, folder: Path
) -> tuple[dict[Who, Measure], dict[Who, Exception]]:
    measures: dict[Who, Measure] = {}
    lost: dict[Who, Exception] = {}
    there = [target for target in plan.targets if target.form in published]
    for who in dict.fromkeys(who for each in there for who in (InProcess(each.form, each.sharing), each)):
        model = published[who.form]
        try:
            if isinstance(who, Target):
                measures[who] = _served(who, model, server, plan, folder)
            else:
                measures[who] = _alone(who, model, plan.device)
        except Exception as error:  # as above
            lost[who] = error
    return measures, lost


def _alone(who: InProcess, model: Published, device: Device) -> Measure:
    copies, images = alone.instances(model, who, device), _images(model)
    check(who, copies[0].logits(images, IMAGES), _expected(model, images), who.form.precision)
    return alone.measurer(copies, images)


def _served(target: Target, model: Published, server: Server, plan: Plan, folder: Path) -> Measure:
    from clients.classifier import Classifier, Options

    if target.shared_memory == "cuda" and (plan.device == "cpu" or plan.generator == "asyncio"):
        found = f"{plan.device} and {plan.generator}"
        raise Failed(f"CUDA shared memory: expected a GPU and perf_analyzer, found {found}")
    if target.shared_memory == "system" and plan.generator == "asyncio":
        raise Failed("shared memory: expected perf_analyzer, found asyncio")
    images, url = _images(model), server.grpc_url if target.protocol == "grpc" else server.http_url
    with Classifier(Options(url, target.protocol), target.served_name) as classifier:
        check(target, classifier.logits(images), _expected(model, images), target.form.precision)
    if plan.generator == "asyncio":
        return by_asyncio.measurer(server, target, images)
    return by_perf_analyzer.measurer(server, target, images, folder)


def _images(model: Published) -> Images:
    from benchmarks.contest.subjects import example_images

    return example_images(model.config, IMAGES)


def _expected(model: Published, images: Images) -> Logits:
    from benchmarks.contest.engines import start

    logits: Logits = start(model.data)(images)
    return logits


def turns(targets: Sequence[Target], loads: Sequence[Load]) -> list[Turn]:
    """Targets share an in-process turn."""
    everybody: list[Turn] = []
    for load, target in product(loads, targets):
        everybody += [(target, load)] if load.in_flight is None else [in_process(target, load), (target, load)]
    return list(dict.fromkeys(everybody))


def take(
    measures: Mapping[Who, Measure],
    order: Sequence[Turn],
    seconds: float,
    rounds: int,
    lost: Mapping[Who, Exception] = MappingProxyType({}),
) -> Iterator[Outcome]:
    """Yields all samples after each round."""
    wrong = any(isinstance(error, WrongAnswer) for error in lost.values())
    outcome = Outcome({turn: [] for turn in order if turn[0] not in lost}, {}, wrong)
    for who, error in lost.items():
        note(f"Not measured: {who}: {one_line(error)}")
        outcome.left_out.update({turn: one_line(error) for turn in order if turn[0] == who})
    for number in range(rounds):
        for turn in steps(list(outcome.samples), f"round {number + 1} of {rounds}"):
            who, load = turn
            try:
                outcome.samples[turn].append(measures[who](load, seconds))
            except Exception as error:  # as above
                outcome.left_out[turn] = one_line(error)
                del outcome.samples[turn]
        yield outcome
