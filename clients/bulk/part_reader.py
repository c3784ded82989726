"""Reads a part and prepares its pictures. In: a `Part`. Out: `Block`s of rows.

A bad picture is a row with an error; a damaged shard ends with such a row. Failing storage raises OSError, and the part
is tried again.
"""

from __future__ import annotations

import gzip
import io
import math
import tarfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from clients.bulk.job import JobMismatch, Part, Settings
from clients.bulk.network import BATCH_SIZE
from clients.bulk.planning import as_text, image_form, opened, size_of
from clients.errors import InvalidImage
from clients.images.decode import read_image
from clients.images.idx import IdxFile
from clients.images.ink import LEAST_CONTRAST
from clients.images.paths import has_image_suffix
from clients.images.prepare import Preparation

if TYPE_CHECKING:
    import pyarrow as pa
    from typing_extensions import Self

Shape = tuple[int, int, int]
Ids: TypeAlias = "pa.Array | list[str] | range"  # a range of rows of the part's file

_BLOCK_BYTES = 1 << 20  # of pixels; larger blocks are not quicker
_LARGEST_PICTURE = 1 << 27  # bytes


@dataclass
class Block:
    """n rows: their ids, uint8 pixels (n, C, H, W), and errors: row in the block -> reason."""

    ids: Ids
    pixels: NDArray[np.uint8]
    errors: dict[int, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Reader:
    """Reads parts for `model`; `settings` name the columns of Parquet files."""

    model: Preparation
    settings: Settings

    def blocks(self, part: Part) -> Iterator[Block]:
        """Raises JobMismatch if the part's file differs from the plan, OSError for failing storage."""
        if part.kind == "pictures":
            yield from self._gathered((path, partial(_content, path)) for path in part.paths)
            return
        path = part.paths[0]
        if (size := size_of(path)) != part.file_bytes:
            raise JobMismatch(f"{path}: expected {part.file_bytes} bytes as planned, found {size}")
        read = {"idx": self._idx, "parquet": self._parquet, "tar": self._tar}[part.kind]
        with opened(path) as raw:
            try:
                yield from read(path, raw, part)
            except _damage() as error:
                if isinstance(error.__cause__, OSError) and not isinstance(error.__cause__, gzip.BadGzipFile):
                    raise error.__cause__ from error
                yield Block([path], self._zeros(1), {0: f"damaged from here on: {error}"})

    def _idx(self, path: str, raw: Any, part: Part) -> Iterator[Block]:
        with IdxFile(path, dimensions=2, raw=raw) as images:
            row = part.start
            item_bytes = math.prod(images.item_shape)
            for block in images.blocks(part.start, part.stop, _block_rows(item_bytes) * item_bytes):
                if self.model.framing is None and (1, *images.item_shape) == self.model.image_shape:
                    yield self._ready(range(row, row + len(block)), block[:, np.newaxis])
                else:
                    yield from self._fitted(row, block)
                row += len(block)

    def _parquet(self, path: str, raw: Any, part: Part) -> Iterator[Block]:
        import pyarrow.parquet as pq

        image_column, id_column = self.settings.image_column, self.settings.id_column
        item_bytes = math.prod(self.model.image_shape)
        file = pq.ParquetFile(raw)
        form = image_form(path, file.schema_arrow, image_column, item_bytes)
        columns = [name for name in (image_column, id_column) if name in file.schema_arrow.names]
        rows = _block_rows(item_bytes) if form == "pixels" else BATCH_SIZE
        groups = range(part.start, part.stop)
        row = part.first_row
        for batch in file.iter_batches(rows, row_groups=groups, columns=columns, use_threads=False):
            has_ids = id_column in columns
            ids = as_text(path, batch.column(id_column)) if has_ids else range(row, row + len(batch))
            images = batch.column(image_column)
            row += len(batch)
            if form == "pixels":
                pixels, errors = _pixels(images, self.model.image_shape)
                yield self._ready(ids, pixels, errors)
            else:
                contents = images.field("bytes") if form == "bytes in a struct" else images
                names = row_ids(path, ids) if isinstance(ids, range) else ids
                named_contents = zip(names.to_pylist(), contents, strict=True)
                yield from self._gathered((name, value.as_py) for name, value in named_contents)

    def _tar(self, path: str, raw: Any, part: Part) -> Iterator[Block]:
        yield from self._gathered(_members(path, raw))

    def _ready(self, ids: Ids, pixels: NDArray[np.uint8], errors: dict[int, str] | None = None) -> Block:
        """Pixels that need no preparation; drawings without ink become errors."""
        errors = errors or {}
        if self.model.preprocessing == "ink":
            # Nearly every drawing has ink in its middle row: then its other rows need no look.
            blank = np.flatnonzero(pixels[:, :, pixels.shape[2] // 2].max(axis=(1, 2)) <= LEAST_CONTRAST)
            for row in blank[pixels[blank].max(axis=(1, 2, 3)) <= LEAST_CONTRAST].tolist():
                errors.setdefault(row, f"no ink found: expected a level above {LEAST_CONTRAST:.0f} of 255")
        return Block(ids, pixels, errors)

    def _fitted(self, row: int, images: NDArray[np.uint8]) -> Iterator[Block]:
        """Prepares images (n, h, w) of another size than the network's; `row`: the first image's row in the file."""
        for start in range(0, len(images), BATCH_SIZE):
            some = images[start : start + BATCH_SIZE]
            rows = range(row + start, row + start + len(some))
            block = Block(rows, self._zeros(len(some)))
            for place, image in enumerate(some):
                try:
                    block.pixels[place] = self.model.prepare_array(image).image
                except InvalidImage as error:
                    block.errors[place] = _reason(error)
            yield block

    def _gathered(self, pictures: Iterable[tuple[str, Any]]) -> Iterator[Block]:
        """`pictures`: an id and a function that returns a picture file's bytes or raises InvalidImage."""
        waiting, damage = iter(pictures), None
        while damage is None:
            some = []
            try:
                for name, content in islice(waiting, BATCH_SIZE):
                    some.append((name, self._tried(content)))  # keeps the pictures before the damage
            except _damage() as error:
                damage = error
            if some:
                yield self._block(some)
            elif damage is None:
                return
        raise damage

    def _zeros(self, count: int) -> NDArray[np.uint8]:
        """(count, C, H, W)."""
        return np.zeros((count, *self.model.image_shape), np.uint8)

    def _block(self, prepared: Sequence[tuple[str, NDArray[np.uint8] | str]]) -> Block:
        block = Block([name for name, _ in prepared], self._zeros(len(prepared)))
        for place, (_, result) in enumerate(prepared):
            if isinstance(result, str):
                block.errors[place] = result
            else:
                block.pixels[place] = result
        return block

    def _tried(self, read: Callable[[], bytes | None]) -> NDArray[np.uint8] | str:
        """The pixels uint8 (C, H, W), or why there are none."""
        try:
            if (content := read()) is None:
                raise InvalidImage("expected a picture, found none")
            picture = read_image(io.BytesIO(content), full_size=self.model.reads_full_size)
            return self.model.prepare(picture).image
        except InvalidImage as error:
            return _reason(error)


def _block_rows(item_bytes: int) -> int:
    """The rows of a block: a multiple of BATCH_SIZE if a block holds so many."""
    rows = max(1, _BLOCK_BYTES // item_bytes)
    return rows - rows % BATCH_SIZE or rows


def _damage() -> tuple[type[Exception], ...]:
    """Exceptions of readers for damaged bytes. A damaged page of Parquet is an OSError, like failing storage."""
    import pyarrow as pa

    of_arrow = (pa.ArrowInvalid, pa.ArrowNotImplementedError)
    return (InvalidImage, tarfile.TarError, zlib.error, EOFError, gzip.BadGzipFile, *of_arrow)


def _reason(error: InvalidImage) -> str:
    return str(error).removeprefix("image: ")


def _content(path: str) -> bytes:
    if path.startswith("/"):
        if Path(path).is_symlink():  # it may lead out of a stranger's folder; links in a tar cannot be followed
            raise InvalidImage(f"expected a picture, found a link to {Path(path).readlink()}")
        if Path(path).is_fifo():  # it would wait for a writer
            raise InvalidImage("expected a picture, found a pipe")
    try:
        with opened(path) as file:
            content: bytes = file.read(_LARGEST_PICTURE + 1)
    except (FileNotFoundError, PermissionError, IsADirectoryError) as error:
        if isinstance(error, PermissionError) and error.errno is None:  # storage without access, as of an expired token
            raise
        raise InvalidImage(f"expected a picture, found {error.strerror or 'No such file or directory'}") from error
    return _bounded(content)


def _bounded(content: bytes) -> bytes:
    if len(content) > _LARGEST_PICTURE:
        raise InvalidImage(f"expected a picture of at most {_LARGEST_PICTURE} bytes, found more")
    return content


class _Member(tarfile.TarInfo):
    @classmethod
    def fromtarfile(cls, shard: tarfile.TarFile) -> Self:
        """Raises ReadError for a damaged or missing header, which tarfile takes for the shard's end."""
        try:
            return super().fromtarfile(shard)
        except tarfile.HeaderError as error:
            if shard.offset == 0 or isinstance(error, tarfile.EOFHeaderError):  # type: ignore[attr-defined]
                raise
            raise tarfile.ReadError(f"{error} at byte {shard.offset}") from error


def _no_image(found: str) -> bytes:
    raise InvalidImage(f"expected a picture, found {found}")


def _members(path: str, raw: Any) -> Iterator[tuple[str, Any]]:
    with tarfile.open(fileobj=raw, mode="r|*", tarinfo=_Member) as shard:
        for member in shard:
            if member.isfile() and has_image_suffix(member.name):
                file = shard.extractfile(member)
                content = file.read(min(member.size, _LARGEST_PICTURE + 1)) if file else b""
                if len(content) < min(member.size, _LARGEST_PICTURE):
                    raise tarfile.ReadError(f"{member.name}: expected {member.size} bytes, found {len(content)}")
                yield f"{path}/{member.name}", partial(_bounded, content)
            elif (member.islnk() or member.issym()) and has_image_suffix(member.name):
                yield f"{path}/{member.name}", partial(_no_image, f"a link to {member.linkname}")
            shard.members = []  # type: ignore[attr-defined]  # else it keeps every header


def row_ids(path: str, rows: range) -> pa.Array:
    """The ids `path[row]`; escapes bytes of the path that are not UTF-8."""
    import pyarrow as pa
    import pyarrow.compute as pc

    name = path.encode(errors="backslashreplace").decode()
    numbers = pa.array(np.arange(rows.start, rows.stop)).cast(pa.string())
    return pc.binary_join_element_wise(f"{name}[", numbers, "]", "")


def _pixels(images: pa.Array, shape: Shape) -> tuple[NDArray[np.uint8], dict[int, str]]:
    """A column of pixels -> uint8 (n, C, H, W); rows of another length are errors."""
    import pyarrow as pa
    import pyarrow.compute as pc

    size, rows = math.prod(shape), len(images)
    if pa.types.is_fixed_size_binary(images.type):
        values = np.frombuffer(images.buffers()[1], np.uint8, rows * size, images.offset * size)
        missing = np.flatnonzero(images.is_null()).tolist() if images.null_count else []
        return values.reshape(rows, *shape), dict.fromkeys(missing, f"expected {size} pixels, found none")
    if images.null_count == 0:
        flat = images.flatten()
        if flat.null_count == 0 and pc.all(pc.equal(pc.list_value_length(images), size)).as_py() is not False:
            return flat.to_numpy(zero_copy_only=False).reshape(rows, *shape), {}
    pixels, errors = np.zeros((rows, *shape), np.uint8), {}
    for row, value in enumerate(images.to_pylist()):
        if value is None or len(value) != size:
            errors[row] = f"expected {size} pixels, found {'none' if value is None else len(value)}"
        elif None in value:
            errors[row] = f"expected {size} pixels, found nulls among them"
        else:
            pixels[row] = np.frombuffer(bytes(value), np.uint8).reshape(shape)
    return pixels, errors
