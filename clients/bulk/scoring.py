"""Classifies a part and writes its answers as a Parquet file."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from clients.bulk.job_manifest import Job, Output, Part
from clients.bulk.network import ModelFile, Network
from clients.bulk.part_reader import Ids, Reader, row_ids

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class Outcome:
    """How the part `number` ended. `failure`: why the part has no file; empty if it has a file."""

    number: int
    rows: int = 0
    errors: int = 0  # rows without an answer
    failure: str = ""


def answer_table(network: Network, reader: Reader, part: Part) -> pa.Table:
    """The answers with the columns id, label, probability, model_version and error.

    A row with an error has no label and no probability. Raises OSError for failing storage.
    """
    import pyarrow as pa

    empty = np.empty((0, *network.description.image_shape), np.uint8)  # so that a part without pictures has columns
    ids, answers, errors, rows = list[Ids](), [network.classify(empty)], dict[int, str](), 0
    for block in reader.blocks(part):
        answers.append(network.classify(block.pixels))
        ids.append(block.ids)
        errors |= {rows + row: error for row, error in block.errors.items()}
        rows += len(block.pixels)
    index, probability = map(np.concatenate, zip(*answers, strict=True))
    for row in np.flatnonzero(np.isnan(probability)).tolist():
        errors.setdefault(row, "expected finite logits, found NaN or infinity")
    missing = np.isin(np.arange(rows), list(errors)) if errors else None
    columns = {
        "id": pa.chunked_array(_id_arrays(part.paths[0], ids), pa.string()),
        "label": _repeated(index.astype(np.int32), network.description.labels, missing),
        "probability": pa.array(probability, mask=missing),
        "model_version": _repeated(np.zeros(rows, np.int32), [network.model.version]),
        "error": pa.array([errors.get(row) for row in range(rows)] if errors else pa.nulls(rows), pa.string()),
    }
    return pa.table(columns, metadata={"model": network.model.name, "sha256": network.model.sha256})


def _id_arrays(path: str, ids: Sequence[Ids]) -> list[pa.Array]:
    """The ids of all blocks as arrays. Ranges of rows are joined, because an array per block costs more time.

    All ranges come first: only the row for a damaged file may follow them.
    """
    ranges = [block_ids for block_ids in ids if isinstance(block_ids, range)]
    arrays = [row_ids(path, range(ranges[0].start, ranges[-1].stop))] if ranges else []
    others = (block_ids for block_ids in ids if not isinstance(block_ids, range))
    return arrays + [_to_text(names) if isinstance(names, list) else names for names in others]


def _to_text(names: Sequence[str | None]) -> pa.Array:
    """Names -> strings. Bytes that are not UTF-8, as in the names of old tars and folders, are escaped."""
    import pyarrow as pa

    return pa.array([name and name.encode(errors="backslashreplace") for name in names], pa.string())


def _repeated(indices: NDArray[np.int32], values: Sequence[str], missing: NDArray[np.bool_] | None = None) -> pa.Array:
    """The column of `values[index]` for every row, null where missing.

    It is a dictionary array, which Parquet stores without looking values up.
    """
    import pyarrow as pa

    return pa.DictionaryArray.from_arrays(pa.array(indices, mask=missing), pa.array(values, pa.string()))


def classify_part(job: Job, part: Part) -> Outcome:
    """Classifies a part and writes the file of its answers. Raises OSError and ClientError."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    network, reader, output = _tools(job)
    table = answer_table(network, reader, part)
    file = pa.BufferOutputStream()
    # Ids are unique: a dictionary would cost more than it saves. Without Arrow's schema, readers see plain strings.
    columns = ["label", "model_version", "error"]
    with pq.ParquetWriter(file, table.schema, compression="zstd", use_dictionary=columns, store_schema=False) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata(table.schema.metadata)
    output.write(part.file_name, file.getvalue().to_pybytes())
    return Outcome(part.number, len(table), len(table) - table["error"].null_count)


@cache
def _tools(job: Job) -> tuple[Network, Reader, Output]:
    """The job's network, reader and output; a process makes them once for all its parts."""
    import pyarrow as pa

    pa.set_cpu_count(1)
    warnings.filterwarnings("ignore", module="PIL")  # serious faults are errors
    settings = job.settings
    network = Network(ModelFile(settings.model_file, settings.model, settings.version, settings.sha256))
    return network, Reader(network.description, settings), Output(job.output)
