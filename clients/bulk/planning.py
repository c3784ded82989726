"""Inputs to parts: folders, patterns, picture files, tar shards, Parquet and idx files, local or on object storage.

Names tell the kind of a file. Only headers are read: an idx file's, a Parquet file's last bytes.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, Literal, cast

import fsspec
from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem

from clients.bulk.job import Kind, Part
from clients.errors import InvalidImage
from clients.images.idx import IdxFile
from clients.images.paths import has_image_suffix

PART_ROWS = 100_000  # of pixels: under a second of a small network
PART_PICTURES = 2_000  # decoding takes longer

_TAR = re.compile(r"\.(tar|tar\.gz|tgz)$", re.IGNORECASE)
_IDX = re.compile(r"(-ubyte|\.idx)(\.gz)?$", re.IGNORECASE)


@dataclass(frozen=True)
class Planner:
    """shape: (C, H, W) of the network's images; part_rows: None for the defaults."""

    shape: tuple[int, int, int]
    image_column: str
    id_column: str
    part_rows: int | None

    def plan(self, inputs: Sequence[str], noted: Callable[[str], None]) -> Iterator[Part]:
        """The numbered parts of absolute inputs; raises InvalidImage for an input of another kind or without files.

        noted: called with a line about files left out.
        """
        numbers = count()
        for part in self._parts(inputs, noted):
            yield replace(part, number=next(numbers))

    def _parts(self, inputs: Sequence[str], noted: Callable[[str], None]) -> Iterator[Part]:
        pictures: list[str] = []
        most = self.part_rows or PART_PICTURES
        for path in _files(inputs, noted):
            if (kind := kind_of(path)) == "pictures":
                pictures.append(path)
                if len(pictures) == most:
                    yield Part(0, "pictures", tuple(pictures), rows=most)
                    pictures = []
            elif kind == "tar":
                yield Part(0, "tar", (path,), file_bytes=size_of(path))
            elif kind == "parquet":
                yield from self._parquet(path)
            else:
                yield from self._idx(path)
        if pictures:
            yield Part(0, "pictures", tuple(pictures), rows=len(pictures))

    def _idx(self, path: str) -> Iterator[Part]:
        """Ranges of rows; a zipped file is one part: it cannot be read from the middle."""
        size = size_of(path)
        with fsspec.open(path, "rb") as raw, IdxFile(path, dimensions=2, raw=raw) as images:
            total, zipped = images.count, images.is_zipped
            expected = 16 + total * math.prod(images.item_shape)
        if not zipped and size != expected:
            raise InvalidImage(f"{path}: expected {expected} bytes for {total} images, found {size}")
        step = total if zipped else self.part_rows or PART_ROWS
        for start in range(0, total, max(1, step)):
            stop = min(start + step, total)
            yield Part(0, "idx", (path,), start, stop, start, stop - start, size)

    def _parquet(self, path: str) -> Iterator[Part]:
        """Row groups, joined up to a part's rows."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        size, most = size_of(path), self.part_rows or PART_ROWS
        try:
            with fsspec.open(path, "rb") as raw:
                file = pq.ParquetFile(raw)
                image_form(path, file.schema_arrow, self.image_column, math.prod(self.shape))
                sizes = [file.metadata.row_group(number).num_rows for number in range(file.num_row_groups)]
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise InvalidImage(f"{path}: expected a Parquet file, found {' '.join(str(error).split())}") from error
        start = first_row = 0
        for stop in range(1, len(sizes) + 1):
            rows = sum(sizes[start:stop])
            if stop == len(sizes) or rows + sizes[stop] > most:
                yield Part(0, "parquet", (path,), start, stop, first_row, rows, size)
                start, first_row = stop, first_row + rows


ImageForm = Literal["encoded", "bytes in a struct", "pixels"]


def image_form(path: str, schema: Any, column: str, item_bytes: int) -> ImageForm:
    """Raises InvalidImage for an unknown form.

    Pixels are fixed_size_binary, or a list of uint8, of (C, H, W); binary is a picture's file, alone or as `bytes` of a
    struct.
    """
    from pyarrow import types

    if column not in schema.names:
        raise InvalidImage(f"{path}: expected a column {column!r}, found {', '.join(schema.names)}")
    kind = schema.field(column).type
    if types.is_fixed_size_binary(kind):
        if kind.byte_width != item_bytes:
            raise InvalidImage(f"{path}: expected pixels of {item_bytes} bytes, found {kind.byte_width}")
        return "pixels"
    lists = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    if lists and types.is_uint8(kind.value_type):
        return "pixels"
    if types.is_binary(kind) or types.is_large_binary(kind):
        return "encoded"
    if types.is_struct(kind) and kind.get_field_index("bytes") >= 0:
        return "bytes in a struct"
    raise InvalidImage(f"{path}: expected {column!r} of bytes or uint8, found {kind}")


def kind_of(path: str) -> Kind | None:
    """By name; None for other files."""
    if has_image_suffix(path):
        return "pictures"
    if path.lower().endswith(".parquet"):
        return "parquet"
    return "tar" if _TAR.search(path) else "idx" if _IDX.search(path) else None


def size_of(path: str) -> int | None:
    """In bytes; None if the storage does not know."""
    filesystem, inner = url_to_fs(path)
    size = filesystem.info(inner).get("size")
    return None if size is None else int(size)


def _files(inputs: Sequence[str], noted: Callable[[str], None]) -> Iterator[str]:
    """In a fixed order; raises InvalidImage for an input without files."""
    for given in inputs:
        filesystem, inner = url_to_fs(given)
        full = _full_name(filesystem)
        matches = sorted(filesystem.glob(inner)) if filesystem.exists(inner) is False else [inner]
        if not matches:
            raise InvalidImage(f"{given}: expected a file, a folder or a pattern that matches, found none")
        for match in matches:
            if not filesystem.isdir(match):
                if kind_of(match) is None:
                    wanted = "a picture, .tar, .parquet or an idx file (-ubyte, .idx)"
                    raise InvalidImage(f"{full(match)}: expected {wanted}, found another name")
                yield full(match)
                continue
            taken = left_out = 0
            for path in _below(filesystem, match):
                if kind_of(path) is None:
                    left_out += 1
                else:
                    taken += 1
                    yield full(path)
            if not taken:
                raise InvalidImage(f"{full(match)}: expected pictures or shards, found none (others: {left_out})")
            if left_out:
                noted(f"{full(match)}: files left out because of their names: {left_out}")


def _full_name(filesystem: Any) -> Callable[[str], str]:
    if isinstance(filesystem, LocalFileSystem):
        return lambda path: path
    return lambda path: cast(str, filesystem.unstrip_protocol(path))


def _below(filesystem: Any, folder: str) -> Iterator[str]:
    """Files in and below a folder, sorted within each, without hidden names."""
    local = isinstance(filesystem, LocalFileSystem)  # its own walk asks for the size of every file
    for current, folders, files in os.walk(folder) if local else filesystem.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith((".", "_")))
        for name in sorted(files):
            if not name.startswith((".", "_")):
                yield f"{str(current).rstrip('/')}/{name}"
