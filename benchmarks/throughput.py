"""Command line: what the real server answers under load, for each way to share its cores, against the same process.

NVIDIA's perf_analyzer asks (`make perf_analyzer` fetches it); the server is started here, on loopback, with a
repository that holds the model once for each way. These and the same ONNX file in this process take turns.
"""

from __future__ import annotations

import base64
import csv
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import click

from models.catalog import SHIPPED, shipped

if TYPE_CHECKING:
    from export.equivalence import Classifier, Images
    from serving.running import Server

TOOL = Path(__file__).parents[1] / ".perf_analyzer"
WINDOWS = 3  # of perf_analyzer, which reports on no fewer
DIGITS = 64  # real ones; a request is one of them, repeated to its batch
TOLERANCE = 1e-4  # of a logit; the server groups the images into other batches


class Failed(Exception):
    """perf_analyzer is not there or did not measure, or the server answers otherwise; the message says which."""


@dataclass(frozen=True)
class Way:
    """How the server's cores are shared: copies of the model, and threads of each, 0 for one a core."""

    instances: int
    threads: int

    def __str__(self) -> str:
        return f"{self.instances}x{self.threads}"


@dataclass(frozen=True)
class Load:
    """What is asked: images a request, and requests in flight."""

    batch: int
    in_flight: int


@dataclass(frozen=True)
class Sample:
    """One measurement: images a second, and the 50th and 99th percentile of a request's duration in milliseconds."""

    images_per_s: float
    p50_ms: float
    p99_ms: float


def _ways(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> list[Way]:
    try:
        return [Way(*map(int, value.split("x"))) for value in values]
    except (ValueError, TypeError) as error:
        raise click.BadParameter(f"expected INSTANCESxTHREADS, such as 2x1, found {' '.join(values)}") from error


@click.command()
@click.option("--model", type=click.Choice(SHIPPED), default="vitbn", show_default=True)
@click.option("--way", "ways", multiple=True, default=("1x0", "2x1", "2x0"), show_default=True, callback=_ways)
@click.option("--batch", "batches", type=click.IntRange(1, 256), multiple=True, default=(1, 64), show_default=True)
@click.option("--in-flight", type=click.IntRange(1), multiple=True, default=(1, 8), show_default=True)
@click.option("--protocol", type=click.Choice(["grpc", "http"]), default="grpc", show_default=True)
@click.option("--shared-memory", is_flag=True, help="Send tensors through system shared memory.")
@click.option("--seconds", type=click.FloatRange(0.5), default=6, show_default=True, help="Of each measurement.")
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True)
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write every sample and the environment.")
def throughput(
    model: str,
    ways: list[Way],
    batches: tuple[int, ...],
    in_flight: tuple[int, ...],
    protocol: str,
    shared_memory: bool,
    seconds: float,
    rounds: int,
    json_path: Path | None,
) -> None:
    """Load the server with requests of --batch images, INSTANCESxTHREADS at a time, and compare with this process."""
    from models.environment import describe
    from models.files import write_atomically
    from serving.running import ServerFailed, running_server

    loads = [Load(batch, count) for batch in batches for count in in_flight]
    options = ["-i", protocol, *(["--shared-memory", "system"] if shared_memory else [])]
    try:
        with tempfile.TemporaryDirectory() as folder:
            data = _publish(model, ways, Path(folder, "repository"))
            with running_server(Path(folder, "repository")) as server:
                measure = _contestants(data, ways, server, options, Path(folder, "digits.json"))
                _check(data, ways, server)
                samples = _in_turn(measure, loads, seconds, rounds)
    except (Failed, ServerFailed, OSError) as error:
        raise click.ClickException(str(error)) from error
    rows = list(_rows(samples, ways, loads))
    _print(rows)
    if json_path:
        asked = {"model": model, "protocol": protocol, "shared_memory": shared_memory, "seconds": seconds}
        result = {"environment": describe(len(os.sched_getaffinity(0)), "cpu"), **asked, "rows": rows}
        write_atomically(json_path, json.dumps(result, indent=2).encode())
        click.echo(f"Wrote {json_path}")


def _publish(model: str, ways: list[Way], repository: Path) -> bytes:
    """Exports with all rewrites and publishes once for each way, under its name; returns the ONNX file."""
    from export.graph import export
    from export.publish import publish
    from export.rewrites.pipeline import ALL
    from export.triton_config import Serving
    from models.checkpoint import load

    exported = export(load(shipped(model)), ALL)
    for way in ways:
        publish(repository, str(way), exported.artifact, Serving(instances=way.instances, threads=way.threads))
    return exported.onnx


def _digits() -> Images:
    from models.data import load_digits

    return load_digits().test_images[:DIGITS]


def _check(data: bytes, ways: list[Way], server: Server) -> None:
    import numpy as np

    from clients.classifier import Classifier
    from export.equivalence import onnx_classifier

    expected = onnx_classifier(data)(_digits())
    for way in ways:
        with Classifier(server.http_url, str(way)) as classifier:
            error = float(np.abs(classifier.logits(_digits()) - expected).max())
        if not error <= TOLERANCE:
            raise Failed(f"{way}: expected logits within {TOLERANCE:.0e} of those in process, found {error:.1e}")


Measure = Callable[[Load, float], Sample]


def _contestants(
    data: bytes, ways: list[Way], server: Server, options: list[str], digits_path: Path
) -> dict[tuple[Way, bool], Measure]:
    """For each way, how the server is measured (True) and how this process is (False)."""
    images = [{"image": {"b64": base64.b64encode(image.tobytes()).decode()}} for image in _digits()]
    digits_path.write_text(json.dumps({"data": images}))
    url = server.grpc_url if "grpc" in options else server.http_url
    command = ["-u", url, *options, "--input-data", str(digits_path)]
    found: dict[tuple[Way, bool], Measure] = {}
    for way in ways:
        found[way, False] = _in_process(data, way)
        found[way, True] = _by_perf_analyzer(["-m", str(way), *command], digits_path.with_suffix(".csv"))
    return found


def _in_process(data: bytes, way: Way) -> Measure:
    """As many sessions as the way has instances, each in a thread of its own; requests in flight are no more."""
    import numpy as np

    from benchmarks.contestants import start

    sessions: list[Classifier] = [
        start(data, "cpu", way.threads or len(os.sched_getaffinity(0))) for _ in range(way.instances)
    ]
    digits = _digits()

    def measure(load: Load, seconds: float) -> Sample:
        images = np.resize(digits, (load.batch, *digits.shape[1:]))
        end = time.perf_counter() + seconds

        def work(classify: Classifier) -> list[float]:
            took = []
            while (begin := time.perf_counter()) < end:
                classify(images)
                took.append(time.perf_counter() - begin)
            return took

        busy = sessions[: load.in_flight]
        with ThreadPoolExecutor(len(busy)) as pool:
            took = np.concatenate(list(pool.map(work, busy)))
        p50, p99 = np.percentile(took, [50, 99]) * 1000
        return Sample(len(took) * load.batch / seconds, float(p50), float(p99))

    return measure


def _by_perf_analyzer(arguments: list[str], report: Path) -> Measure:
    program = TOOL / "bin" / "perf_analyzer"
    if not program.is_file():
        raise Failed(f"{program}: expected NVIDIA's perf_analyzer, found no such file; make perf_analyzer fetches it")

    def measure(load: Load, seconds: float) -> Sample:
        what = ["-b", str(load.batch), "--concurrency-range", f"{load.in_flight}:{load.in_flight}"]
        # So many windows are averaged, however far apart they are: the spread between rounds says more.
        how = ["-p", str(int(1000 * seconds / WINDOWS)), "-r", str(WINDOWS), "-s", "999"]
        written = ["-f", str(report), "--verbose-csv"]
        environment = os.environ | {"LD_LIBRARY_PATH": str(TOOL / "lib")}
        report.unlink(missing_ok=True)
        done = subprocess.run(
            [program, *arguments, *what, *how, *written], env=environment, capture_output=True, text=True
        )
        if done.returncode or not report.is_file():
            reason = " ".join((done.stderr or done.stdout).split()[-40:])
            raise Failed(f"perf_analyzer stopped with exit code {done.returncode}: {reason}")
        with report.open(newline="") as file:
            row = next(csv.DictReader(file))
        return Sample(
            float(row["Inferences/Second"]), float(row["p50 latency"]) / 1000, float(row["p99 latency"]) / 1000
        )

    return measure


def _in_turn(
    measure: dict[tuple[Way, bool], Measure], loads: list[Load], seconds: float, rounds: int
) -> dict[tuple[Way, bool, Load], list[Sample]]:
    from tqdm import tqdm

    samples: dict[tuple[Way, bool, Load], list[Sample]] = {}
    turns = [(load, who) for _ in range(rounds) for load in loads for who in measure]
    for load, who in tqdm(turns, unit=" measurements", leave=False, disable=None):
        samples.setdefault((*who, load), []).append(measure[who](load, seconds))
    return samples


def _rows(
    samples: dict[tuple[Way, bool, Load], list[Sample]], ways: list[Way], loads: list[Load]
) -> Iterator[dict[str, Any]]:
    """Medians over the rounds; images/s against those of this process, in the same way to share the cores."""

    def middle(way: Way, served: bool, load: Load, name: str) -> float:
        return float(median(getattr(sample, name) for sample in samples[way, served, load]))

    for load in loads:
        for way in ways:
            of = {name: middle(way, True, load, name) for name in ("images_per_s", "p50_ms", "p99_ms")}
            yield {
                **asdict(load),
                **asdict(way),
                **of,
                "in_process_images_per_s": (alone := middle(way, False, load, "images_per_s")),
                "in_process_p50_ms": (alone_ms := middle(way, False, load, "p50_ms")),
                "of_in_process": of["images_per_s"] / alone,
                "added_ms": of["p50_ms"] - alone_ms,
                "samples": [asdict(sample) for sample in samples[way, True, load]],
                "in_process_samples": [asdict(sample) for sample in samples[way, False, load]],
            }


def _print(rows: list[dict[str, Any]]) -> None:
    from benchmarks.timing import table

    header = ("batch", "in flight", "instances", "threads", "images/s", "in process", "ratio", "p50 ms", "p99 ms")
    cells = [
        (
            str(row["batch"]),
            str(row["in_flight"]),
            str(row["instances"]),
            str(row["threads"] or "all"),
            f"{row['images_per_s']:,.0f}",
            f"{row['in_process_images_per_s']:,.0f}",
            f"{row['of_in_process']:.2f}",
            f"{row['p50_ms']:.2f}",
            f"{row['p99_ms']:.2f}",
        )
        for row in rows
    ]
    click.echo(table(header, cells))


if __name__ == "__main__":
    throughput()
