"""Divides inputs into parts: folders, patterns, picture files, tar shards, Parquet and idx files.

In: paths, local or on object storage. Out: `Part`s. The name of a file tells its kind. Only headers are read.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Literal, NoReturn

import fsspec
from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem

from clients.bulk.job_manifest import JobMismatch, Kind, Part, Settings
from clients.errors import InvalidImage
from clients.images.decode import IdxFile
from common.picture_formats import has_picture_suffix
from common.plurals import counted

if TYPE_CHECKING:
    import pyarrow as pa

PART_ROWS = 100_000  # of pixels; a small network takes less than a second
PART_PICTURES = 2_000  # picture files; decoding takes longer

_TAR = re.compile(r"\.(tar|tar\.gz|tgz)$", re.IGNORECASE)
_IDX = re.compile(r"(-ubyte|\.idx)(\.gz)?$", re.IGNORECASE)


@dataclass(frozen=True)
class Planner:
    """Divides the inputs of `settings` into parts. `shape`: (C, H, W) of the network's images."""

    shape: tuple[int, int, int]
    settings: Settings

    def plan(self, on_note: Callable[[str], None]) -> Iterator[Part]:
        """The numbered parts. `on_note` gets notes for the user.

        Raises InvalidImage for an input of another kind and for an input without files.
        """
        for number, part in enumerate(self._parts(on_note)):
            yield replace(part, number=number)

    def _parts(self, on_note: Callable[[str], None]) -> Iterator[Part]:
        """The parts, all with the number 0."""
        pictures: list[str] = []
        part_pictures = self.settings.part_rows or PART_PICTURES
        for path in _files(self.settings.inputs, on_note):
            if (kind := file_kind(path)) == "pictures":
                pictures.append(path)
                if len(pictures) == part_pictures:
                    yield Part(0, "pictures", tuple(pictures), rows=part_pictures)
                    pictures = []
            elif kind == "tar":
                yield Part(0, "tar", (path,), file_bytes=file_size(path))
            elif kind == "parquet":
                yield from self._parquet(path)
            else:
                yield from self._idx(path)
        if pictures:
            yield Part(0, "pictures", tuple(pictures), rows=len(pictures))

    def _idx(self, path: str) -> Iterator[Part]:
        """Ranges of rows. A zipped file is a single part, because it cannot be read from its middle."""
        size = file_size(path)
        with open_file(path) as raw, IdxFile(path, dimensions=2, raw=raw) as images:
            total, zipped = images.count, images.is_zipped
            expected = 16 + total * math.prod(images.item_shape)
        if not zipped and size != expected:
            raise InvalidImage(f"{path}: expected {expected} bytes for {counted(total, 'image')}, found {size}")
        step = total if zipped else self.settings.part_rows or PART_ROWS
        for start in range(0, total, max(1, step)):
            stop = min(start + step, total)
            yield Part(0, "idx", (path,), start, stop, start, stop - start, size)

    def _parquet(self, path: str) -> Iterator[Part]:
        """Consecutive row groups, as many as fit the rows of a part."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        size, most_rows, id_column = file_size(path), self.settings.part_rows or PART_ROWS, self.settings.id_column
        try:
            with open_file(path) as raw:
                file = pq.ParquetFile(raw)
                schema = file.schema_arrow
                image_form(path, schema, self.settings.image_column, math.prod(self.shape))
                if schema.names.count(id_column) > 1:
                    raise InvalidImage(f"{path}: expected one column {id_column!r}, found {', '.join(schema.names)}")
                if id_column in schema.names:
                    ids_as_text(path, pa.nulls(0, schema.types[schema.names.index(id_column)]))
                sizes = [file.metadata.row_group(number).num_rows for number in range(file.num_row_groups)]
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError) as error:
            if isinstance(error, OSError) and error.errno:
                raise
            raise InvalidImage(f"{path}: expected a Parquet file, found {' '.join(str(error).split())}") from error
        start = first_row = 0
        for stop in range(1, len(sizes) + 1):
            rows = sum(sizes[start:stop])
            if stop == len(sizes) or rows + sizes[stop] > most_rows:
                yield Part(0, "parquet", (path,), start, stop, first_row, rows, size)
                start, first_row = stop, first_row + rows


ImageForm = Literal["encoded", "bytes in a struct", "pixels"]


def image_form(path: str, schema: Any, column: str, item_bytes: int) -> ImageForm:
    """How a Parquet column holds images. `item_bytes`: of an image's pixels. Raises InvalidImage for another form.

    Pixels (C, H, W) are fixed_size_binary or a list of uint8. A binary value is a picture file; so is the field `bytes`
    of a struct.
    """
    from pyarrow import types

    if schema.names.count(column) != 1:
        raise InvalidImage(f"{path}: expected one column {column!r}, found {', '.join(schema.names)}")
    kind = schema.field(column).type
    if types.is_fixed_size_binary(kind):
        if kind.byte_width != item_bytes:
            raise InvalidImage(f"{path}: expected pixels of {item_bytes} bytes, found {kind.byte_width}")
        return "pixels"
    is_list = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    if is_list and types.is_uint8(kind.value_type):
        return "pixels"
    if types.is_binary(kind) or types.is_large_binary(kind):
        return "encoded"
    inner = kind.field("bytes").type if types.is_struct(kind) and kind.get_field_index("bytes") >= 0 else kind
    if types.is_binary(inner) or types.is_large_binary(inner):
        return "bytes in a struct"
    raise InvalidImage(f"{path}: expected {column!r} of bytes or uint8, found {kind}")


def ids_as_text(path: str, ids: pa.Array) -> pa.Array:
    """Casts ids to strings. Raises JobMismatch for ids that are not text, such as the bytes of a hash."""
    import pyarrow as pa

    try:
        return ids.cast(pa.string())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise JobMismatch(f"{path}: expected ids that are text, found {ids.type}: {error}") from error


def file_kind(path: str) -> Kind | None:
    """The kind by the file's name; None for another kind."""
    if has_picture_suffix(path):
        return "pictures"
    if path.lower().endswith(".parquet"):
        return "parquet"
    return "tar" if _TAR.search(path) else "idx" if _IDX.search(path) else None


def open_file(path: str) -> Any:
    """Opens a file for reading. Local paths are not given to fsspec, which takes `::` in them for a chain of URLs."""
    return Path(path).open("rb") if path.startswith("/") else fsspec.open(path, "rb")


def file_size(path: str) -> int | None:
    """The file's size in bytes; None if the storage does not know it."""
    if path.startswith("/"):
        return Path(path).stat().st_size
    filesystem, inner = url_to_fs(path)
    size = filesystem.info(inner).get("size")
    return None if size is None else int(size)


def _files(inputs: Sequence[str], on_note: Callable[[str], None]) -> Iterator[str]:
    """The files of all inputs, in a fixed order. `on_note` is called for folders with files of other kinds.

    Raises InvalidImage for an input without files or of another kind.
    """
    for path_or_pattern in inputs:
        filesystem, inner = url_to_fs(path_or_pattern)
        # The path itself, or with the protocol of remote storage.
        full: Callable[[str], str] = str if isinstance(filesystem, LocalFileSystem) else filesystem.unstrip_protocol
        matches = sorted(filesystem.glob(inner)) if filesystem.exists(inner) is False else [inner]
        if not matches:
            raise InvalidImage(f"{path_or_pattern}: expected a file, a folder or a pattern that matches, found none")
        folders: set[PurePosixPath] = set()
        for match in matches:
            if not folders.isdisjoint(PurePosixPath(match).parents):  # `**` also matches the files in a folder
                continue
            if not filesystem.isdir(match):
                if file_kind(match) is None:
                    kinds = "a picture, .tar, .parquet or an idx file (-ubyte, .idx)"
                    raise InvalidImage(f"{full(match)}: expected {kinds}, found another name")
                yield full(match)
                continue
            folders.add(PurePosixPath(match))
            used = others = 0
            for path in _folder_files(filesystem, match):
                if file_kind(path) is None:
                    others += 1
                else:
                    used += 1
                    yield full(path)
            if not used:
                raise InvalidImage(f"{full(match)}: expected pictures or shards, found none (others: {others})")
            if others:
                on_note(f"{full(match)}: files left out because of their names: {others}")


def _raise(error: OSError) -> NoReturn:
    raise error


def _walk(filesystem: Any, folder: str) -> Iterator[tuple[str, list[str], list[str]]]:
    """As fsspec's walk, but raises OSError for a folder that cannot be listed, which fsspec leaves out."""
    folder = folder.rstrip("/")
    types = {entry["name"].rstrip("/"): entry["type"] for entry in filesystem.ls(folder, detail=True)}
    types.pop(folder, None)  # some storage lists the folder in itself
    folders = [name.rpartition("/")[2] for name, kind in types.items() if kind == "directory"]
    yield folder, folders, [name.rpartition("/")[2] for name, kind in types.items() if kind != "directory"]
    for name in folders:
        yield from _walk(filesystem, f"{folder}/{name}")


def _folder_files(filesystem: Any, folder: str) -> Iterator[str]:
    """The files in a folder and its sub-folders, without hidden names, sorted within each folder.

    Raises OSError for a locked folder.
    """
    is_local = isinstance(filesystem, LocalFileSystem)  # there fsspec's walk would ask for the size of every file
    for current, folders, files in os.walk(folder, onerror=_raise) if is_local else _walk(filesystem, folder):
        folders[:] = sorted(name for name in folders if not name.startswith((".", "_")))
        for name in sorted(files):
            if not name.startswith("."):  # names with _ count: cameras write _DSC0001.JPG
                yield f"{str(current).rstrip('/')}/{name}"
