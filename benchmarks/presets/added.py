"""Times calls of a served model over HTTP and gRPC beside calls of the same file in this process."""

from __future__ import annotations

import json
import resource
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import click

from benchmarks.load.published_candidates import Failed
from benchmarks.measure.candidate import Candidate
from benchmarks.measure.engines import SERVED, why_not
from benchmarks.measure.measured_network import shipped_network
from benchmarks.measure.options import dataset_options, device_option, digits, seconds_option
from benchmarks.measure.progress import steps
from benchmarks.measure.result_file import Record
from benchmarks.measure.workload_settings import IN_PROCESS, LARGEST_BATCH
from benchmarks.reporting.recorded_decorator import recorded
from clients.options import DEFAULTS, Options
from export.precision_table import PRECISIONS
from models.catalog import OF_DIGITS

if TYPE_CHECKING:
    from benchmarks.measure.interleaved_timing import Durations
    from clients.classifier import Classifier
    from export.compare_logits import Images

CHECKED = 1000  # images whose logits are compared
STREAM_STEPS = 10  # readings of the memory while images are streamed
CLIENT_CALLS = 300  # single requests over each transport, for the client's part of their duration


@click.command()
@click.option("--model", type=click.Choice(OF_DIGITS), default="vitbn", show_default=True)
@click.option("--engine", type=click.Choice(list(SERVED)), default="onnxruntime", show_default=True)
@click.option("--precision", type=click.Choice(PRECISIONS), default="fp32", show_default=True)
@click.option(
    "--batch",
    type=click.IntRange(1, LARGEST_BATCH),
    default=DEFAULTS.batch_size,
    show_default=True,
    help="Images per request.",
)
@device_option
@dataset_options
@seconds_option(30, "At most, per table; three rounds in any case.")
@click.option("--streamed", type=click.IntRange(0), default=1_000_000, show_default=True, help="Images, for memory.")
@recorded("added", "streamed")
def added(
    record: Record,
    model: str,
    engine: Any,
    precision: Any,
    batch: int,
    wanted: str,
    dataset: str,
    data_dir: Path | None,
    seconds: float,
    streamed: int,
) -> None:
    """Time all test images in one `classify` call, and single images, against the same file in process."""
    from benchmarks.load.published_candidates import device_of_server

    record.device = device = device_of_server(wanted)
    candidate = Candidate(shipped_network(model), SERVED[engine], precision, device=device)
    if reason := why_not(candidate):
        raise Failed(reason)
    _measure(candidate, batch, digits(dataset, data_dir).test_images, seconds, streamed, record)


def _measure(candidate: Candidate, batch: int, images: Images, seconds: float, streamed: int, record: Record) -> None:
    """Publishes the candidate, checks its logits over each transport, and writes all rows to `record`.

    `streamed`: images of the measurement of memory. Raises WrongAnswer if a transport's logits differ.
    """
    from benchmarks.load import in_process
    from benchmarks.load.published_candidates import check, publish, server_arguments
    from benchmarks.measure.engines import start
    from benchmarks.measure.interleaved_timing import time_interleaved
    from clients.classifier import Classifier
    from serving.local_server import running_server

    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        published = publish(candidate, Path(folder), {candidate.model: None}, batch)
        in_process_classifier = in_process.start_instance(published, candidate)
        server = stack.enter_context(running_server(Path(folder), server_arguments()))
        connections = {
            "HTTP": Options(server.http_url, "http", batch_size=batch),
            "gRPC": Options(server.grpc_url, "grpc", batch_size=batch),
        }
        classifiers = {name: stack.enter_context(Classifier(options)) for name, options in connections.items()}
        expected = start(published.data)(images[:CHECKED])
        check("in process", in_process_classifier.logits(images[:CHECKED], batch), expected, candidate.precision)
        for name, classifier in classifiers.items():
            check(name, classifier.logits(images[:CHECKED]), expected, candidate.precision)
        rows: list[dict[str, Any]] = []
        shared_fields = {
            "model": candidate.model,
            "engine": candidate.runtime.engine,
            "precision": candidate.precision,
            "batch_size": batch,
        }
        for count in (len(images), 1):
            calls: dict[str, Callable[[], object]] = {
                IN_PROCESS: partial(in_process_classifier.logits, images[:count], batch)
            }
            calls |= {name: partial(classifier.classify, images[:count]) for name, classifier in classifiers.items()}

            def add(measured: dict[str, Durations], count: int = count) -> None:
                rows.extend(shared_fields | row for row in _rows(measured, count))
                record.update(rows)

            time_interleaved(calls, seconds, f"{count} images a call", use=add)
        statistics_url = f"http://{server.http_url}/v2/models/{candidate.model}/stats"
        for name, samples in _client_part_ns(classifiers, statistics_url, images[:1]).items():
            row = next(row for row in rows if (row["transport"], row["images_a_call"]) == (name, 1))
            row |= {"client_ms": median(samples) / 1e6, "client_samples_ns": samples}
        record.update([*rows, *(shared_fields | row for row in _stream(classifiers["HTTP"], images, streamed))])


def _client_part_ns(classifiers: Mapping[str, Classifier], statistics_url: str, image: Images) -> dict[str, list[int]]:
    """Transport -> the client's part of each single request in ns. The transports take turns.

    The client's part is the request's duration minus the server's, which lasts from the arrival of the request until
    the network stack has the answer. `image`: uint8 (1, 1, 28, 28).
    """

    def requests_and_ns() -> tuple[int, int]:
        """The successful requests so far, and their durations in the server together."""
        with urllib.request.urlopen(statistics_url) as answer:
            success = json.load(answer)["model_stats"][0]["inference_stats"]["success"]
        return success["count"], success["ns"]

    samples: dict[str, list[int]] = {name: [] for name in classifiers}
    count, total_ns = requests_and_ns()
    for _ in range(CLIENT_CALLS):
        for name, classifier in classifiers.items():
            start_ns = time.perf_counter_ns()
            classifier.classify(image)
            took_ns = time.perf_counter_ns() - start_ns
            before, before_ns = count, total_ns
            while count == before:  # the server counts a request after its answer has left
                count, total_ns = requests_and_ns()
            samples[name].append(took_ns - (total_ns - before_ns))
    return samples


def _stream(classifier: Classifier, images: Images, count: int) -> Iterator[dict[str, float]]:
    """Streams `count` images, the given ones repeated, and yields STREAM_STEPS readings of this process's memory."""
    answers = classifier.stream(images[i % len(images)] for i in range(count))
    part = count // STREAM_STEPS
    for step in steps(range(1, STREAM_STEPS + 1 if count else 1), f"Streaming: {count:,} images"):
        streamed = step * sum(1 for _ in islice(answers, part))
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        yield {"images": streamed, "resident_mb": pages * resource.getpagesize() / 1e6}


def _rows(measured: Mapping[str, Durations], count: int) -> list[dict[str, Any]]:
    """A row for each transport. `added_ms`: how much longer than in process its median call takes."""
    in_process_ms = measured[IN_PROCESS].percentile_ms(50)
    return [
        {
            "images_a_call": count,
            "transport": name,
            "images_per_s": count / (p50_ms := durations.percentile_ms(50)) * 1000,
            "added_ms": p50_ms - in_process_ms,
            **durations.row(),
        }
        for name, durations in measured.items()
    ]
