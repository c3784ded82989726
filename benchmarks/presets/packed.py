"""Times an encoder on padded texts before and after `vitbn rewrite --packed`.

Beside them: the ways in which clients avoid padding themselves, one text a call and batches of similar lengths.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import click

from benchmarks.measure.foreign_networks import SIX, text
from benchmarks.measure.options import seconds_option
from benchmarks.measure.padding_strategies import LOADS, PADDED, ROWS_READ, calls, int8_files, packed_files
from benchmarks.measure.result_file import Record, Row
from benchmarks.reporting.recorded_decorator import recorded

LAYERS = (6, 12)


@click.command()
@click.option("--layers", type=click.Choice([str(number) for number in LAYERS]), multiple=True, help="[default: all]")
@seconds_option(60, "At most, for each network and load; three rounds in any case.")
@recorded("packed", threads=1)
def packed(record: Record, layers: tuple[str, ...], seconds: float) -> None:
    """Time BERT of 6 and 12 layers of 384 on padded texts: as exported, packed, and packed with the last block cut.

    The first and the last also in int8, dynamically quantised. The answer is the first token's row. Beside them the
    file as exported with a call for each text, and with the texts sorted and called by eights.
    """
    with tempfile.TemporaryDirectory() as folder:
        for number in map(int, layers or LAYERS):
            (network_folder := Path(folder, str(number))).mkdir()
            for row in measure(number, network_folder, seconds):
                record.add({"network": f"bert-{number}x384", "title": f"BERT, {number} layers of 384", **row})


def measure(layers: int, folder: Path, seconds: float) -> Iterator[Row]:
    """A row for each load and candidate. `folder` gets the encoder's files, `seconds`: for each load."""
    import numpy as np

    from benchmarks.measure.interleaved_timing import ratio_with_interval, time_interleaved

    sizes = {name: size for name, size in SIX.items() if name != "num_labels"} | {"num_hidden_layers": layers}
    files = packed_files(text("BertConfig", "BertModel", fusible=False, **sizes)(folder), folder, (ROWS_READ,))
    files |= int8_files(files, folder)
    for load, lengths_of in LOADS.items():
        lengths = lengths_of(np.random.default_rng(0))
        measured = time_interleaved(calls(files, lengths), seconds, f"{layers} layers, {load}")
        for candidate, durations in measured.items():
            ratio = vars(ratio_with_interval(measured[PADDED], durations)) if candidate != PADDED else None
            yield {
                **{"load": load, "candidate": candidate, "texts": len(lengths), "tokens": sum(lengths)},
                "padded_tokens": len(lengths) * max(lengths),
                **durations.row(),
                "times_as_fast": ratio,
            }
