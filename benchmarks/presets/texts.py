"""Loads an encoder on a server with texts of different lengths: padded and packed, joined and apart."""

from __future__ import annotations

import tempfile
from pathlib import Path

import click

from benchmarks.measure.choices import FiniteRange, json_option
from benchmarks.measure.machine import cores

NETWORK = "bert-6x384"


@click.command()
@click.option("--in-flight", type=click.IntRange(1, 16), default=16, show_default=True, help="Requests; closed loop.")
@click.option("--seconds", type=FiniteRange(1), default=10, show_default=True, help="Per measurement.")
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True)
@json_option
def texts(in_flight: int, seconds: float, rounds: int, json_path: Path | None) -> None:
    """Serve BERT of 6 layers of 384 with one text a request, as exported and packed, joined and apart.

    Lengths: chunks of documents, by the quantiles that huggingface/funes#167 publishes; short texts, drawn.
    NVIDIA's perf_analyzer sends them.
    """
    from benchmarks.load import by_perf_analyzer
    from benchmarks.load.texts import measure
    from benchmarks.measure.foreign_networks import NETWORKS
    from benchmarks.measure.padded_texts import packed_files
    from benchmarks.measure.run import recording
    from benchmarks.reporting.tables import show

    with recording(json_path, cores()) as record, tempfile.TemporaryDirectory() as folder:
        by_perf_analyzer.program()
        files = packed_files(NETWORKS[NETWORK].file(Path(folder)), Path(folder))
        for rows in measure(files, in_flight, seconds, rounds):
            record.update([{"network": NETWORK, "title": NETWORKS[NETWORK].title, **row} for row in rows])
        click.echo(show(record.run(), "texts"))
