"""Command line: what the real server answers under load, for each way to share its cores, against the same process.

NVIDIA's perf_analyzer asks (`make perf_analyzer` fetches it) or, without it, this project's client in asyncio. The
server is started here, on loopback, with a repository that holds each model once for each way. Everything that is
measured takes turns in one run.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from benchmarks import load_by_asyncio, load_by_perf_analyzer, load_in_process
from benchmarks.load import (
    MIN_REQUESTS,
    Failed,
    InProcess,
    LeftOut,
    Load,
    Measure,
    Sample,
    Target,
    Turn,
    Way,
    in_process,
)
from models.catalog import SHIPPED, shipped

if TYPE_CHECKING:
    from clients.endpoint import Protocol
    from export.equivalence import Images
    from serving.running import Server

IMAGES = 64  # real ones; a request is as many of them as its batch, again from the first where it is more
IN_FLIGHT = (1, 2, 8)
TOLERANCE = 1e-4  # of a logit; the server groups the images into other batches
SHARED_MEMORY = {"no": (False,), "yes": (True,), "both": (False, True)}


@dataclass(frozen=True)
class Published:
    """A model's ONNX file, which the server has too, and what it is asked: uint8 images (n, C, H, W)."""

    data: bytes
    images: Images


def _ways(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> list[Way]:
    try:
        return list(dict.fromkeys(Way(*map(int, value.split("x"))) for value in values))
    except (ValueError, TypeError) as error:
        raise click.BadParameter(f"expected INSTANCESxTHREADS, such as 2x1, found {' '.join(values)}") from error


@click.command()
@click.option("--model", "models", type=click.Choice(SHIPPED), multiple=True, default=("vitbn",), show_default=True)
@click.option("--way", "ways", multiple=True, default=("1x0", "2x1"), show_default=True, callback=_ways)
@click.option("--batch", "batches", type=click.IntRange(1, 256), multiple=True, default=(1, 64), show_default=True)
@click.option(
    "--in-flight",
    type=click.IntRange(1),
    multiple=True,
    help=f"Requests; closed loop.  [default: {', '.join(map(str, IN_FLIGHT))}; with --rate none]",
)
@click.option("--rate", "rates", type=click.FloatRange(0, min_open=True), multiple=True, help="Images/s; open loop.")
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
@click.option("--seconds", type=click.FloatRange(0.5), default=2, show_default=True, help="Of each measurement.")
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True)
@click.option(
    "--max-p99-ms", type=click.FloatRange(0), default=100, show_default=True, help="Of a rate that counts as carried."
)
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write every sample and the environment.")
@click.option("--plot", "plot_path", type=click.Path(path_type=Path), help="Write FILE-MODEL.png and FILE-MODEL.svg.")
@click.pass_context
def throughput(
    context: click.Context,
    models: tuple[str, ...],
    ways: list[Way],
    batches: tuple[int, ...],
    in_flight: tuple[int, ...],
    rates: tuple[float, ...],
    protocols: tuple[Protocol, ...],
    shared_memory: str,
    generator: str,
    seconds: float,
    rounds: int,
    max_p99_ms: float,
    json_path: Path | None,
    plot_path: Path | None,
) -> None:
    """Load the server with requests of --batch images, at a number in flight or at a rate, and compare with this
    process.
    """
    from benchmarks import throughput_report as report
    from serving.running import ServerFailed, running_server

    loads = _loads(batches, in_flight or (() if rates else IN_FLIGHT), rates, seconds)
    reached = product(dict.fromkeys(models), ways, protocols, SHARED_MEMORY[shared_memory])
    targets = list(dict.fromkeys(Target(*each) for each in reached))
    try:
        generator = _generator(generator)
        with tempfile.TemporaryDirectory() as folder:
            published = {name: _publish(name, ways, Path(folder, "repository")) for name in dict.fromkeys(models)}
            with running_server(Path(folder, "repository")) as server:
                for target in targets:
                    _check(target, published[target.model], server)
                measures = _measures(targets, published, server, generator, Path(folder))
                samples, left_out = _in_turn(measures, _turns(targets, loads), seconds, rounds)
        measured = report.result(samples, left_out, max_p99_ms)
        asked = {"command": _command(context), "generator": generator, "seconds": seconds, "rounds": rounds}
        report.show(measured)
        report.write({**asked, **measured}, json_path, plot_path)
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
    """The generator that `auto` stands for; raises Failed where perf_analyzer is asked for and is not here."""
    if asked == "asyncio":
        return asked
    try:
        load_by_perf_analyzer.program()
    except Failed as missing:
        if asked == "perf_analyzer":
            raise
        click.echo(f"Load by asyncio: {missing}", err=True)
        return "asyncio"
    return "perf_analyzer"


def _publish(model: str, ways: Sequence[Way], repository: Path) -> Published:
    """Exports with all rewrites and publishes once for each way, under a name of its own."""
    from benchmarks.contestants import example_images
    from export.graph import export
    from export.publish import publish
    from export.rewrites.pipeline import ALL
    from export.triton_config import Serving
    from models.checkpoint import load

    loaded = load(shipped(model))
    exported = export(loaded, ALL)
    for way in ways:
        serving = Serving(instances=way.instances, threads=way.threads)
        publish(repository, f"{model}-{way}", exported.artifact, serving)
    return Published(exported.onnx, example_images(loaded.config, IMAGES))


def _check(target: Target, published: Published, server: Server) -> None:
    """Raises Failed where the server's logits are not those of the same file in this process."""
    import numpy as np

    from clients.classifier import Classifier
    from export.equivalence import onnx_classifier

    expected = onnx_classifier(published.data)(published.images)
    url = server.grpc_url if target.protocol == "grpc" else server.http_url
    with Classifier(url, target.served_name, target.protocol, shared_memory=target.shared_memory) as classifier:
        error = float(np.abs(classifier.logits(published.images) - expected).max())
    if not error <= TOLERANCE:
        raise Failed(f"{target}: expected logits within {TOLERANCE:.0e} of those in process, found {error:.1e}")


def _measures(
    targets: Sequence[Target], published: Mapping[str, Published], server: Server, generator: str, folder: Path
) -> dict[Target | InProcess, Measure]:
    found: dict[Target | InProcess, Measure] = {}
    for name, model in published.items():
        load_by_perf_analyzer.write_images(folder / f"{name}.json", model.images)
    for target in targets:
        model = published[target.model]
        found[target] = (
            load_by_perf_analyzer.measurer(server, target, folder / f"{target.model}.json")
            if generator == "perf_analyzer"
            else load_by_asyncio.measurer(server, target, model.images)
        )
        alone = InProcess(target.model, target.way)
        if alone not in found:
            found[alone] = load_in_process.measurer(model.data, model.images, target.way)
    return found


def _turns(targets: Sequence[Target], loads: Sequence[Load]) -> list[Turn]:
    """Who is measured under which load, in their order; what several are compared with is measured once."""
    turns: list[Turn] = []
    for load, target in product(loads, targets):
        turns += [(target, load)] if load.in_flight is None else [in_process(target, load), (target, load)]
    return list(dict.fromkeys(turns))


def _in_turn(
    measures: Mapping[Target | InProcess, Measure], turns: Sequence[Turn], seconds: float, rounds: int
) -> tuple[dict[Turn, list[Sample]], dict[Turn, str]]:
    """A sample of each turn and round; and of those left out in any round the reason alone."""
    from tqdm import tqdm

    samples: dict[Turn, list[Sample]] = {turn: [] for turn in turns}
    left_out: dict[Turn, str] = {}
    for turn in tqdm([*turns] * rounds, unit=" measurements", leave=False, disable=None):
        if turn not in left_out:
            who, load = turn
            try:
                samples[turn].append(measures[who](load, seconds))
            except LeftOut as reason:
                left_out[turn] = str(reason)
                del samples[turn]
    return samples, left_out


def _command(context: click.Context) -> str:
    """What was asked, without the names of files."""
    words = ["python benchmarks/throughput.py"]
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        if source is ParameterSource.COMMANDLINE and not isinstance(parameter.type, click.Path):
            values = context.params[parameter.name or ""]
            words += [f"{parameter.opts[0]} {value}" for value in (values if parameter.multiple else [values])]
    return " ".join(words)


if __name__ == "__main__":
    throughput()
