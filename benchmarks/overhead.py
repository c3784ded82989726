"""Command line: what server and client add to a model, against the same ONNX file run in this process.

The real server is started here, on loopback, with a repository of its own. Contestants take turns in one run, and their
answers are compared with those of this process first. The client's own part of a request is its duration less what the
server's statistics say of it: from its arrival until its answer is handed to the network.
"""

from __future__ import annotations

import json
import os
import resource
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import click

from clients.endpoint import BATCH_SIZE
from models.catalog import SHIPPED, shipped
from models.data import DIGIT_SETS, DataError, load_dataset

if TYPE_CHECKING:
    from benchmarks.timing import Durations
    from clients.classifier import Classifier
    from export.equivalence import Images, Logits
    from serving.running import Server

IN_PROCESS = "in process"
WAYS: dict[str, dict[str, Any]] = {
    "HTTP": {"protocol": "http"},
    "HTTP, shared memory": {"protocol": "http", "shared_memory": True},
    "gRPC": {"protocol": "grpc"},
    "gRPC, shared memory": {"protocol": "grpc", "shared_memory": True},
}
TOLERANCE = 1e-4  # of a logit; the server groups the images into other batches
STREAM_STEPS = 10
CLIENT_CALLS = 300


class WrongAnswer(Exception):
    """The server's logits are not those of the same file in this process."""


@click.command()
@click.option("--model", type=click.Choice(SHIPPED), default="vitbn", show_default=True)
@click.option("--dataset", type=click.Choice(DIGIT_SETS), default="mnist", show_default=True, help="Its test images.")
@click.option("--data-dir", type=click.Path(path_type=Path), help="Of idx files, else $MNIST_DIR or $EMNIST_DIR.")
@click.option("--seconds", type=click.FloatRange(1), default=30, show_default=True, help="For each of two tables.")
@click.option("--streamed", type=click.IntRange(0), default=1_000_000, show_default=True, help="Images, for memory.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write every sample and the environment.")
def overhead(
    model: str, dataset: str, data_dir: Path | None, seconds: float, streamed: int, json_path: Path | None
) -> None:
    """Time all test images as one `classify` call, and one image alone, against the same ONNX file in process."""
    from models.environment import describe
    from models.files import write_atomically
    from serving.running import ServerFailed, running_server

    try:
        images = load_dataset(dataset, data_dir).test_images
        with tempfile.TemporaryDirectory() as folder:
            run = _publish(model, Path(folder, "repository"))
            with running_server(Path(folder, "repository")) as server, ExitStack() as stack:
                classifiers = {name: stack.enter_context(_connect(server, name)) for name in WAYS}
                _check(classifiers, run, images)
                tables = {count: _measure(classifiers, run, images[:count], seconds) for count in (len(images), 1)}
                client_ns = _client_part(classifiers, f"http://{server.http_url}/v2/models/{model}/stats", images[:1])
                memory = list(_stream(classifiers["HTTP"], images, streamed))
    except (DataError, ServerFailed, WrongAnswer, OSError) as error:
        raise click.ClickException(str(error)) from error
    rows = [row for count, measured in tables.items() for row in _rows(measured, count)]
    for row in rows:
        if row["images_a_call"] == 1 and (samples := client_ns.get(row["way"])):
            row |= {"client_ms": median(samples) / 1e6, "client_samples_ns": samples}
    _print(rows, memory)
    if json_path:
        result = {
            "benchmark": "overhead",
            "environment": describe(len(os.sched_getaffinity(0)), "cpu"),
            "model": model,
            "dataset": dataset,
            "batch_size": BATCH_SIZE,
            "rows": rows,
            "streamed": [{"images": count, "resident_mb": megabytes} for count, megabytes in memory],
        }
        write_atomically(json_path, json.dumps(result, indent=2).encode())
        click.echo(f"Wrote {json_path}")


def _publish(model: str, repository: Path) -> Callable[[Images], Logits]:
    """Exports with all rewrites; returns the same file's session in this process, on all cores."""
    from benchmarks.contestants import start
    from export.graph import export
    from export.publish import publish
    from export.rewrites.pipeline import ALL
    from models.checkpoint import load

    exported = export(load(shipped(model)), ALL)
    publish(repository, model, exported.artifact)
    return start(exported.onnx, "cpu", len(os.sched_getaffinity(0)))


def _connect(server: Server, name: str) -> Classifier:
    from clients.classifier import Classifier

    options = WAYS[name]
    return Classifier(server.grpc_url if options["protocol"] == "grpc" else server.http_url, **options)


def _check(classifiers: dict[str, Classifier], run: Callable[[Images], Logits], images: Images) -> None:
    import numpy as np

    some = images[:1000]
    expected = run(some)
    for name, classifier in classifiers.items():
        error = float(np.abs(classifier.logits(some) - expected).max())
        if not error <= TOLERANCE:
            raise WrongAnswer(f"{name}: expected logits within {TOLERANCE:.0e} of those in process, found {error:.1e}")


def _measure(
    classifiers: dict[str, Classifier], run: Callable[[Images], Logits], images: Images, seconds: float
) -> dict[str, Durations]:
    from tqdm import tqdm

    from benchmarks.timing import time_interleaved

    batches = [images[i : i + BATCH_SIZE] for i in range(0, len(images), BATCH_SIZE)]
    contestants: dict[str, Callable[[], object]] = {IN_PROCESS: lambda: [run(batch) for batch in batches]}
    contestants |= {name: partial(classifier.classify, images) for name, classifier in classifiers.items()}
    with tqdm(total=100, unit="%", desc=f"{len(images)} images a call", leave=False, disable=None) as bar:
        return time_interleaved(contestants, seconds, lambda share: bar.update(int(100 * share) - bar.n))


def _client_part(classifiers: dict[str, Classifier], statistics_url: str, image: Images) -> dict[str, list[int]]:
    """For each way, of single requests, the nanoseconds that the server knows nothing of; the ways take turns."""

    def served() -> tuple[int, int]:
        with urllib.request.urlopen(statistics_url) as answer:
            success = json.load(answer)["model_stats"][0]["inference_stats"]["success"]
        return success["count"], success["ns"]

    samples: dict[str, list[int]] = {name: [] for name in classifiers}
    count, total_ns = served()
    for _ in range(CLIENT_CALLS):
        for name, classifier in classifiers.items():
            start_ns = time.perf_counter_ns()
            classifier.classify(image)
            took_ns = time.perf_counter_ns() - start_ns
            before, before_ns = count, total_ns
            while count == before:  # the server counts a request after its answer has left
                count, total_ns = served()
            samples[name].append(took_ns - (total_ns - before_ns))
    return samples


def _stream(classifier: Classifier, images: Images, count: int) -> Iterator[tuple[int, float]]:
    """Streams `count` images, one after the other; yields how many are answered and the memory in MB, ten times."""
    from tqdm import tqdm

    answers = classifier.stream(images[i % len(images)] for i in range(count))
    with tqdm(total=count, unit=" images", unit_scale=True, desc="Streaming", leave=False, disable=None) as bar:
        for step in range(1, STREAM_STEPS + 1 if count else 1):
            bar.update(sum(1 for _ in islice(answers, count // STREAM_STEPS)))
            pages = int(Path("/proc/self/statm").read_text().split()[1])
            yield step * (count // STREAM_STEPS), pages * resource.getpagesize() / 1e6


def _rows(measured: dict[str, Durations], count: int) -> list[dict[str, Any]]:
    alone_ms = measured[IN_PROCESS].percentile_ms(50)
    return [
        {
            "images_a_call": count,
            "way": name,
            "p50_ms": (p50_ms := durations.percentile_ms(50)),
            "p99_ms": durations.percentile_ms(99),
            "images_per_s": count / p50_ms * 1000,
            "of_in_process": alone_ms / p50_ms,
            "added_ms": p50_ms - alone_ms,
            "samples_ns": durations.samples_ns,
        }
        for name, durations in measured.items()
    ]


def _print(rows: list[dict[str, Any]], memory: list[tuple[int, float]]) -> None:
    from benchmarks.timing import table

    header = ("images a call", "way", "p50 ms", "p99 ms", "images/s", "of in process", "added ms", "client ms")
    cells = [
        (
            f"{row['images_a_call']:,}",
            row["way"],
            f"{row['p50_ms']:.2f}",
            f"{row['p99_ms']:.2f}",
            f"{row['images_per_s']:,.0f}",
            f"{row['of_in_process']:.2f}",
            f"{row['added_ms']:.2f}",
            f"{row['client_ms']:.2f}" if "client_ms" in row else "-",
        )
        for row in rows
    ]
    click.echo(table(header, cells))
    if memory:
        (first, before), (last, after) = memory[0], memory[-1]
        click.echo(f"Resident memory after {first:,} streamed images {before:.1f} MB, after {last:,} {after:.1f} MB")


if __name__ == "__main__":
    overhead()
