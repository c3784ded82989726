"""A part in, its answers out as one Parquet file."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from clients.bulk.blocks import Ids, Reader, numbered
from clients.bulk.job import Job, Output, Part
from clients.bulk.network import ModelFile, Network

if TYPE_CHECKING:
    import pyarrow as pa


_IDS = 10_000  # in an array


@dataclass(frozen=True)
class Outcome:
    """`failure` is the reason for a missing file, else empty."""

    number: int
    rows: int = 0
    errors: int = 0  # rows without an answer
    failure: str = ""


def score_part(network: Network, reader: Reader, part: Part) -> pa.Table:
    """Columns id, label, probability, model_version, error; an error's row has no label and probability.

    Memory: one block, and about 80 bytes a row for the answers.
    """
    import pyarrow as pa

    none = np.empty((0, *network.shape), np.uint8)  # a shard without pictures still gives every column
    ids, answers, errors, rows = list[Ids](), [network.classify(none)], dict[int, str](), 0
    for block in reader.blocks(part):
        answers.append(network.classify(block.pixels))
        ids.append(block.ids)
        errors |= {rows + row: error for row, error in block.errors.items()}
        rows += len(block.pixels)
    index, probability = (np.concatenate(each) for each in zip(*answers, strict=True))
    missing = np.isin(np.arange(rows), list(errors)) if errors else None
    columns = {
        "id": pa.chunked_array(_id_arrays(part.paths[0], ids), pa.string()),
        "label": pa.array(network.labels, pa.string()).take(pa.array(index, mask=missing)),
        "probability": pa.array(probability, mask=missing),
        "model_version": pa.repeat(pa.scalar(network.model.version, pa.string()), rows),
        "error": pa.array([errors.get(row) for row in range(rows)] if errors else pa.nulls(rows), pa.string()),
    }
    about = {"model": network.model.name, "sha256": network.model.sha256}
    return pa.table(columns, metadata=about)


def _id_arrays(path: str, ids: Sequence[Ids]) -> list[pa.Array]:
    """Row numbers by the ten thousand, for an array a block would cost more. Only the row of a damage follows them."""
    import pyarrow as pa

    ranges = [each for each in ids if isinstance(each, range)]
    rows = range(ranges[0].start, ranges[-1].stop) if ranges else range(0)
    arrays = [numbered(path, rows[first : first + _IDS]) for first in range(0, len(rows), _IDS)]
    others = (each for each in ids if not isinstance(each, range))
    return arrays + [pa.array(each, pa.string()) if isinstance(each, list) else each for each in others]


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
