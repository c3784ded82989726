"""Command line: the cost of server and client, against the same ONNX file in this process."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import click

from benchmarks.measure.choices import dataset_options, json_option, seconds_option
from benchmarks.measure.machine import cores
from clients.server.endpoint import BATCH_SIZE
from models.catalog import SHIPPED
from models.data import DataError, load_dataset

if TYPE_CHECKING:
    from benchmarks.measure.results import Record
    from export.equivalence import Images

CHECKED = 1000  # images whose logits are compared


@click.command()
@click.option("--model", type=click.Choice(SHIPPED), default="vitbn", show_default=True)
@dataset_options
@seconds_option(30, "At most, for each of two tables; three rounds in any case.")
@click.option("--streamed", type=click.IntRange(0), default=1_000_000, show_default=True, help="Images, for memory.")
@json_option
def overhead(
    model: str, dataset: str, data_dir: Path | None, seconds: float, streamed: int, json_path: Path | None
) -> None:
    """Time all test images in one `classify` call, and single images, against the same ONNX file in process."""
    from benchmarks.load.terms import Failed
    from benchmarks.measure.results import recording
    from benchmarks.reporting.overhead_table import text
    from serving.running import ServerFailed

    try:
        images = load_dataset(dataset, data_dir).test_images
        with recording("overhead", json_path, cores()) as record:
            record.content |= {"model": model, "dataset": dataset, "batch_size": BATCH_SIZE}
            _measure(model, images, seconds, streamed, record)
    except (DataError, ServerFailed, Failed, OSError) as error:
        raise click.ClickException(str(error)) from error
    click.echo(text(record.content["rows"], record.content["streamed"]))


def _measure(model: str, images: Images, seconds: float, streamed: int, record: Record) -> None:
    from benchmarks.contest.engines import start
    from benchmarks.load import transports
    from benchmarks.load.published import check, publish
    from benchmarks.measure.timing import Durations, finished_rounds, time_interleaved
    from serving.running import running_server

    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        run = start(publish(model, Path(folder), {model: None}).data)
        server = stack.enter_context(running_server(Path(folder)))
        classifiers = {name: stack.enter_context(transports.connect(server, name)) for name in transports.TRANSPORTS}
        expected = run(images[:CHECKED])
        for name, classifier in classifiers.items():
            check(name, classifier, images[:CHECKED], expected)
        rows = []
        for count in (len(images), 1):
            contestants = transports.calls(classifiers, run, images[:count])

            def add(measured: dict[str, Durations], count: int = count) -> None:
                rows.extend(transports.rows(measured, count))
                record.update({"rows": rows})

            finished_rounds(partial(time_interleaved, contestants, seconds, f"{count} images a call"), add)
        statistics_url = f"http://{server.http_url}/v2/models/{model}/stats"
        for name, samples in transports.client_part_ns(classifiers, statistics_url, images[:1]).items():
            row = next(row for row in rows if (row["transport"], row["images_a_call"]) == (name, 1))
            row |= {"client_ms": median(samples) / 1e6, "client_samples_ns": samples}
        record.update({"rows": rows, "streamed": list(transports.stream(classifiers["HTTP"], images, streamed))})


if __name__ == "__main__":
    overhead()
