"""A part in, its answers out as one Parquet file."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from clients.bulk.blocks import Reader
from clients.bulk.job import Job, Output, Part
from clients.bulk.network import ModelFile, Network

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class Outcome:
    """`failure` is the reason for a missing file, else empty."""

    number: int
    rows: int = 0
    errors: int = 0  # rows without an answer
    failure: str = ""


def score_part(network: Network, reader: Reader, part: Part) -> pa.Table:
    """Columns id, label, probability, model_version, error; an error's row has no label and probability.

    Memory: one block, and about 60 bytes a row for the answers.
    """
    import pyarrow as pa

    labels = pa.array(network.labels, pa.string())
    batches = []
    for block in reader.blocks(part):
        index, probability = network.classify(block.pixels)
        rows = len(index)
        missing = np.isin(np.arange(rows), list(block.errors)) if block.errors else None
        some = [block.errors.get(row) for row in range(rows)] if block.errors else None
        columns = {
            "id": pa.array(block.ids, pa.string()) if isinstance(block.ids, list) else block.ids,
            "label": labels.take(pa.array(index, mask=missing)),
            "probability": pa.array(probability, mask=missing),
            "model_version": pa.repeat(pa.scalar(network.model.version), rows),
            "error": pa.array(some, pa.string()) if some else pa.nulls(rows, pa.string()),
        }
        batches.append(pa.RecordBatch.from_pydict(columns, schema=_schema(network.model)))
    return pa.Table.from_batches(batches, _schema(network.model))


def do_part(job: Job, line: str) -> Outcome:
    """`line` is of the job's list; raises OSError and ClientError."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    part = Part.from_line(line)
    network, reader, output = _tools(job)
    table = score_part(network, reader, part)
    file = pa.BufferOutputStream()
    # ids are unique: a dictionary would cost more than it saves
    pq.write_table(table, file, compression="zstd", use_dictionary=["label", "model_version", "error"])
    output.write(part.file_name, file.getvalue().to_pybytes())
    return Outcome(part.number, len(table), len(table) - table["error"].null_count)


@cache
def _tools(job: Job) -> tuple[Network, Reader, Output]:
    """Cached per process; Arrow gets one core."""
    import pyarrow as pa

    pa.set_cpu_count(1)
    warnings.filterwarnings("ignore", module="PIL")  # serious faults are errors
    settings = job.settings
    network = Network(ModelFile(settings.model_file, settings.model, settings.version, settings.sha256))
    return network, Reader(network.shape, network.preprocessing, settings), Output(job.output)


def _schema(model: ModelFile) -> pa.Schema:
    import pyarrow as pa

    names = ("id", "label", "model_version", "error")
    types = {name: pa.string() for name in names} | {"probability": pa.float32()}
    order = ("id", "label", "probability", "model_version", "error")
    return pa.schema([(name, types[name]) for name in order], {"model": model.name, "sha256": model.sha256})
