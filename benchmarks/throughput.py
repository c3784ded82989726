"""Command line: the real server under load, for each sharing of its cores, against the same process."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from benchmarks.load.terms import MIN_REQUESTS, Failed, Load, Sharing, Target
from benchmarks.measure.choices import FiniteRange, Result, json_option
from benchmarks.measure.machine import cores
from benchmarks.measure.progress import note
from models.catalog import SHIPPED

if TYPE_CHECKING:
    from benchmarks.contest.runtimes import Device
    from benchmarks.measure.results import Record
    from clients.server.endpoint import Protocol

IN_FLIGHT = (1, 2, 8)
SHARED_MEMORY = {"no": (False,), "yes": (True,), "both": (False, True)}


def _sharings(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> list[Sharing]:
    try:
        return list(dict.fromkeys(Sharing(*map(int, value.split("x"))) for value in values))
    except (ValueError, TypeError) as error:
        raise click.BadParameter(f"expected INSTANCESxTHREADS, such as 2x1, found {' '.join(values)}") from error


@click.command()
@click.option("--model", "models", type=click.Choice(SHIPPED), multiple=True, default=("vitbn",), show_default=True)
@click.option(
    "--sharing",
    "--way",
    "sharings",
    multiple=True,
    default=("1x0", "2x1"),
    show_default=True,
    callback=_sharings,
    help="INSTANCESxTHREADS of the model on the server; 0 threads: one per core.",
)
@click.option("--batch", "batches", type=click.IntRange(1, 256), multiple=True, default=(1, 64), show_default=True)
@click.option(
    "--in-flight",
    type=click.IntRange(1),
    multiple=True,
    help=f"Requests; closed loop.  [default: {', '.join(map(str, IN_FLIGHT))}; with --rate none]",
)
@click.option("--rate", "rates", type=FiniteRange(0, min_open=True), multiple=True, help="Images/s; open loop.")
@click.option(
    "--protocol",
    "protocols",
    type=click.Choice(["grpc", "http"]),
    multiple=True,
    default=("grpc",),
    show_default=True,
)
@click.option("--shared-memory", type=click.Choice(list(SHARED_MEMORY)), default="no", show_default=True)
@click.option("--generator", type=click.Choice(["auto", "perf_analyzer", "asyncio"]), default="auto", show_default=True)
@click.option("--seconds", type=FiniteRange(0.5), default=2, show_default=True, help="Per measurement.")
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True)
@click.option("--max-p99-ms", type=FiniteRange(0), default=100, show_default=True, help="p99 limit for a carried rate.")
@click.option("--device", "wanted", type=click.Choice(["auto", "cpu", "cuda"]), default="auto", show_default=True)
@json_option
@click.option("--plot", "plot_path", type=Result(), help="Write FILE-MODEL.png and FILE-MODEL.svg.")
def throughput(
    models: tuple[str, ...],
    sharings: list[Sharing],
    batches: tuple[int, ...],
    in_flight: tuple[int, ...],
    rates: tuple[float, ...],
    protocols: tuple[Protocol, ...],
    shared_memory: str,
    generator: str,
    seconds: float,
    rounds: int,
    max_p99_ms: float,
    wanted: str,
    json_path: Path | None,
    plot_path: Path | None,
) -> None:
    """Load the server with requests of --batch images, at a number in flight or at a rate, and compare with this
    process.
    """
    from benchmarks.measure.results import recording
    from benchmarks.reporting import throughput_report as report
    from serving.running import ServerFailed

    loads = _loads(batches, in_flight or (() if rates else IN_FLIGHT), rates, seconds)
    reached = product(dict.fromkeys(models), sharings, protocols, SHARED_MEMORY[shared_memory])
    targets = list(dict.fromkeys(Target(*each) for each in reached))
    try:
        device = _device(wanted)
        about = {"generator": _generator(generator), "seconds": seconds, "rounds": rounds, "max_p99_ms": max_p99_ms}
        with recording("throughput", json_path, cores(), device, report.beside(plot_path)) as record:
            record.content |= about
            _measure(targets, loads, about, device, record)
            click.echo(report.text(record.content))
    except (Failed, ServerFailed, OSError) as error:
        raise click.ClickException(str(error)) from error


def _loads(batches: Sequence[int], in_flight: Sequence[int], rates: Sequence[float], seconds: float) -> list[Load]:
    open_loops = [Load(batch, rate=rate) for batch in batches for rate in sorted(rates)]
    for load in open_loops:
        if (requests := load.requests(seconds)) < MIN_REQUESTS:
            raise click.UsageError(
                f"--rate {load.rate:g} with --batch {load.batch}: expected {MIN_REQUESTS} requests or more in "
                f"{seconds:g} s, found {requests}; ask for more --seconds or a higher rate"
            )
    return [Load(batch, count) for batch in batches for count in sorted(in_flight)] + open_loops


def _generator(asked: str) -> str:
    from benchmarks.load import by_perf_analyzer

    if asked == "asyncio":
        return asked
    try:
        by_perf_analyzer.program()
    except Failed as missing:
        if asked == "perf_analyzer":
            raise
        note(f"Load by asyncio: {missing}")
        return "asyncio"
    return "perf_analyzer"


def _device(wanted: str) -> Device:
    """Where server and process compute: a GPU with a native server alone. Raises ClickException without it."""
    from benchmarks.contest.devices import choose
    from serving.launcher import native_server

    if native_server(os.environ.get("PATH", os.defpath)):
        return choose(wanted)
    if wanted == "cuda":
        raise click.ClickException("--device cuda: expected a native tritonserver, found the one of CPUs alone")
    return "cpu"


def _measure(
    targets: Sequence[Target], loads: Sequence[Load], about: dict[str, Any], device: Device, record: Record
) -> None:
    from benchmarks.load import turns
    from benchmarks.load.published import publish
    from benchmarks.reporting import throughput_report as report
    from serving.running import running_server

    with tempfile.TemporaryDirectory() as folder:
        repository = Path(folder, "repository")
        names = {
            model: {target.served_name: target.sharing for target in targets if target.model == model}
            for model in dict.fromkeys(target.model for target in targets)
        }
        published = {model: publish(model, repository, served) for model, served in names.items()}
        with running_server(repository) as server:
            measures = turns.checked(targets, published, server, about["generator"], Path(folder), device)
            order, seconds, rounds = turns.turns(targets, loads), about["seconds"], about["rounds"]
            took_s = len(order) * rounds * seconds
            note(f"{len(order)} loads, {rounds} rounds of {seconds:g} s each: about {took_s:.0f} s")
            for outcome in turns.take(measures, order, seconds, rounds):
                record.update(report.fields(outcome, about["max_p99_ms"]))


if __name__ == "__main__":
    throughput()
