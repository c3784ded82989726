"""Classifies a part and writes its answers as one Parquet file."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from clients.bulk.job import Job, Output, Part
from clients.bulk.network import ModelFile, Network
from clients.bulk.part_reader import Ids, Reader, row_ids

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class Outcome:
    """How part `number` ended. `failure`: why it has no file, empty if it has."""

    number: int
    rows: int = 0
    errors: int = 0  # rows without an answer
    failure: str = ""


def score_part(network: Network, reader: Reader, part: Part) -> pa.Table:
    """Columns id, label, probability, model_version, error; a row with an error has no label and no probability."""
    import pyarrow as pa

    empty = np.empty((0, *network.about.image_shape), np.uint8)  # a shard without pictures still gives every column
    ids, answers, errors, rows = list[Ids](), [network.classify(empty)], dict[int, str](), 0
    for block in reader.blocks(part):
        answers.append(network.classify(block.pixels))
        ids.append(block.ids)
        errors |= {rows + row: error for row, error in block.errors.items()}
        rows += len(block.pixels)
    index, probability = (np.concatenate(each) for each in zip(*answers, strict=True))
    for row in np.flatnonzero(np.isnan(probability)).tolist():
        errors.setdefault(row, "expected finite logits, found NaN or infinity")
    missing = np.isin(np.arange(rows), list(errors)) if errors else None
    columns = {
        "id": pa.chunked_array(_id_arrays(part.paths[0], ids), pa.string()),
        "label": _repeated(index.astype(np.int32), network.about.labels, missing),
        "probability": pa.array(probability, mask=missing),
        "model_version": _repeated(np.zeros(rows, np.int32), [network.model.version]),
        "error": pa.array([errors.get(row) for row in range(rows)] if errors else pa.nulls(rows), pa.string()),
    }
    about = {"model": network.model.name, "sha256": network.model.sha256}
    return pa.table(columns, metadata=about)


def _id_arrays(path: str, ids: Sequence[Ids]) -> list[pa.Array]:
    """Joins all ranges of rows in one array: an array per block costs more. Only a row that tells of damage follows."""
    ranges = [each for each in ids if isinstance(each, range)]
    arrays = [row_ids(path, range(ranges[0].start, ranges[-1].stop))] if ranges else []
    others = (each for each in ids if not isinstance(each, range))
    return arrays + [_texts(each) if isinstance(each, list) else each for each in others]


def _texts(names: Sequence[str | None]) -> pa.Array:
    """Names -> strings; escapes bytes that are not UTF-8, as names in old tars and folders have."""
    import pyarrow as pa

    return pa.array([each and each.encode(errors="backslashreplace") for each in names], pa.string())


def _repeated(places: NDArray[np.int32], values: Sequence[str], missing: NDArray[np.bool_] | None = None) -> pa.Array:
    """The column of `values[place]` by row, null where missing: a dictionary, which Parquet stores without look-ups."""
    import pyarrow as pa

    return pa.DictionaryArray.from_arrays(pa.array(places, mask=missing), pa.array(values, pa.string()))


def do_part(job: Job, part: Part) -> Outcome:
    """Classifies a part and writes its file. Raises OSError and ClientError."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    network, reader, output = _tools(job)
    table = score_part(network, reader, part)
    file = pa.BufferOutputStream()
    # Ids are unique: a dictionary would cost more than it saves. Without Arrow's schema readers get plain strings.
    words = ["label", "model_version", "error"]
    with pq.ParquetWriter(file, table.schema, compression="zstd", use_dictionary=words, store_schema=False) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata(table.schema.metadata)
    output.write(part.file_name, file.getvalue().to_pybytes())
    return Outcome(part.number, len(table), len(table) - table["error"].null_count)


@cache
def _tools(job: Job) -> tuple[Network, Reader, Output]:
    import pyarrow as pa

    pa.set_cpu_count(1)
    warnings.filterwarnings("ignore", module="PIL")  # serious faults are errors
    settings = job.settings
    network = Network(ModelFile(settings.model_file, settings.model, settings.version, settings.sha256))
    return network, Reader(network.about, settings), Output(job.output)
