"""Reads a part and prepares its pictures. In: a `Part`. Out: `Block`s of rows.

A picture that cannot be read becomes a row with an error. A damaged tar or zipped idx file ends with a row with an
error. Failing storage raises OSError, and the part is tried again.
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

from clients.bulk.job_manifest import JobMismatch, Part, Settings
from clients.bulk.network import BATCH_SIZE
from clients.bulk.planning import file_size, ids_as_text, image_form, open_file
from clients.errors import InvalidImage
from clients.images.decode import IdxFile, read_image
from clients.images.ink import LEAST_CONTRAST
from clients.images.prepare import Preparation
from common.picture_formats import has_picture_suffix

if TYPE_CHECKING:
    import pyarrow as pa
    from typing_extensions import Self

Shape = tuple[int, int, int]
Ids: TypeAlias = "pa.Array | list[str] | range"  # a range: rows of the part's file

_BLOCK_BYTES = 1 << 20  # of pixels in a block; larger blocks are not faster
_LARGEST_PICTURE = 1 << 27  # bytes


@dataclass
class Block:
    """n rows of a part.

    pixels: uint8 (n, C, H, W), the model's input; of any values in a row with an error.
    errors: row in the block -> reason.
    """

    ids: Ids
    pixels: NDArray[np.uint8]
    errors: dict[int, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Reader:
    """Reads parts for `model`. `settings` name the columns of Parquet files."""

    model: Preparation
    settings: Settings

    def blocks(self, part: Part) -> Iterator[Block]:
        """The rows of the part. Raises JobMismatch if its file differs from the plan, OSError for failing storage."""
        if part.kind == "pictures":
            yield from self._decoded((path, partial(_read_picture_file, path)) for path in part.paths)
            return
        path = part.paths[0]
        if (size := file_size(path)) != part.file_bytes:
            raise JobMismatch(f"{path}: expected {part.file_bytes} bytes as planned, found {size}")
        read = {"idx": self._idx, "parquet": self._parquet, "tar": self._tar}[part.kind]
        with open_file(path) as raw:
            try:
                yield from read(path, raw, part)
            except _damage_errors() as error:
                if isinstance(error.__cause__, OSError) and not isinstance(error.__cause__, gzip.BadGzipFile):
                    raise error.__cause__ from error
                yield Block([path], self._zeros(1), {0: f"damaged from here on: {error}"})
            except OSError as error:  # Arrow names no file
                raise error if error.errno else OSError(f"{path}: {error}") from error

    def _idx(self, path: str, raw: Any, part: Part) -> Iterator[Block]:
        with IdxFile(path, dimensions=2, raw=raw) as images:
            row = part.start
            item_bytes = math.prod(images.item_shape)
            for block in images.blocks(part.start, part.stop, _block_rows(item_bytes) * item_bytes):
                if self.model.framing is None and (1, *images.item_shape) == self.model.image_shape:
                    yield self._unchanged(range(row, row + len(block)), block[:, np.newaxis])
                else:
                    yield from self._prepared(row, block)
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
            ids = ids_as_text(path, batch.column(id_column)) if has_ids else range(row, row + len(batch))
            images = batch.column(image_column)
            row += len(batch)
            if form == "pixels":
                pixels, errors = _column_pixels(images, self.model.image_shape)
                yield self._unchanged(ids, pixels, errors)
            else:
                contents = images.field("bytes") if form == "bytes in a struct" else images
                names = row_ids(path, ids) if isinstance(ids, range) else ids
                named_contents = zip(names.to_pylist(), contents, strict=True)
                yield from self._decoded((name, value.as_py) for name, value in named_contents)

    def _tar(self, path: str, raw: Any, part: Part) -> Iterator[Block]:
        yield from self._decoded(_tar_members(path, raw))

    def _unchanged(self, ids: Ids, pixels: NDArray[np.uint8], errors: dict[int, str] | None = None) -> Block:
        """The block of pixels (n, C, H, W) that have the model's shape. Drawings without ink become errors."""
        errors = errors or {}
        if self.model.preprocessing == "ink":
            # Nearly every drawing has ink in its middle row, and then its other rows are not examined.
            blank = np.flatnonzero(pixels[:, :, pixels.shape[2] // 2].max(axis=(1, 2)) <= LEAST_CONTRAST)
            for row in blank[pixels[blank].max(axis=(1, 2, 3)) <= LEAST_CONTRAST].tolist():
                errors.setdefault(row, f"no ink found: expected a level above {LEAST_CONTRAST:.0f} of 255")
        return Block(ids, pixels, errors)

    def _prepared(self, row: int, images: NDArray[np.uint8]) -> Iterator[Block]:
        """Blocks of images (n, h, w) of another size than the network's. `row`: the first image's row in the file."""
        for start in range(0, len(images), BATCH_SIZE):
            batch = images[start : start + BATCH_SIZE]
            rows = range(row + start, row + start + len(batch))
            block = Block(rows, self._zeros(len(batch)))
            for index, image in enumerate(batch):
                try:
                    block.pixels[index] = self.model.prepare_array(image).image
                except InvalidImage as error:
                    block.errors[index] = _reason(error)
            yield block

    def _decoded(self, pictures: Iterable[tuple[str, Any]]) -> Iterator[Block]:
        """Blocks of picture files.

        pictures: an id, and a function that returns the bytes of a picture file or raises InvalidImage.
        Raises the error of damage after a block of the pictures before the damage.
        """
        remaining, damage = iter(pictures), None
        while damage is None:
            results = []
            try:
                for name, read in islice(remaining, BATCH_SIZE):
                    results.append((name, self._pixels_or_reason(read)))
            except _damage_errors() as error:
                damage = error
            if results:
                yield self._block(results)
            elif damage is None:
                return
        raise damage

    def _zeros(self, count: int) -> NDArray[np.uint8]:
        """(count, C, H, W)."""
        return np.zeros((count, *self.model.image_shape), np.uint8)

    def _block(self, results: Sequence[tuple[str, NDArray[np.uint8] | str]]) -> Block:
        """The block of ids with pixels (C, H, W) or with reasons."""
        block = Block([name for name, _ in results], self._zeros(len(results)))
        for index, (_, result) in enumerate(results):
            if isinstance(result, str):
                block.errors[index] = result
            else:
                block.pixels[index] = result
        return block

    def _pixels_or_reason(self, read: Callable[[], bytes | None]) -> NDArray[np.uint8] | str:
        """The pixels uint8 (C, H, W) of the picture file that `read` returns, or the reason why there are none."""
        try:
            if (content := read()) is None:
                raise InvalidImage("expected a picture, found none")
            picture = read_image(io.BytesIO(content), full_size=self.model.reads_full_size)
            return self.model.prepare(picture).image
        except InvalidImage as error:
            return _reason(error)


def _block_rows(item_bytes: int) -> int:
    """The number of rows of a block, by the bytes of a row: a multiple of BATCH_SIZE if a block holds so many rows."""
    rows = max(1, _BLOCK_BYTES // item_bytes)
    return rows - rows % BATCH_SIZE or rows


def _damage_errors() -> tuple[type[Exception], ...]:
    """What readers raise for damaged bytes, except OSError: a damaged page of Parquet is like failing storage."""
    import pyarrow as pa

    of_arrow = (pa.ArrowInvalid, pa.ArrowNotImplementedError)
    return (InvalidImage, tarfile.TarError, zlib.error, EOFError, gzip.BadGzipFile, *of_arrow)


def _reason(error: InvalidImage) -> str:
    return str(error).removeprefix("image: ")


def _read_picture_file(path: str) -> bytes:
    """Raises InvalidImage for a missing, locked or too large file and for a link, OSError for failing storage."""
    if path.startswith("/"):
        if Path(path).is_symlink():  # a stranger's folder must not give files outside it
            raise InvalidImage(f"expected a picture, found a link to {Path(path).readlink()}")
        if Path(path).is_fifo():  # reading would wait for a writer
            raise InvalidImage("expected a picture, found a pipe")
    try:
        with open_file(path) as file:
            content: bytes = file.read(_LARGEST_PICTURE + 1)
    except (FileNotFoundError, PermissionError, IsADirectoryError) as error:
        if isinstance(error, PermissionError) and error.errno is None:  # of storage, as for an expired token
            raise
        raise InvalidImage(f"expected a picture, found {error.strerror or 'No such file or directory'}") from error
    return _check_size(content)


def _check_size(content: bytes) -> bytes:
    """Returns the content. Raises InvalidImage if it is too large."""
    if len(content) > _LARGEST_PICTURE:
        raise InvalidImage(f"expected a picture of at most {_LARGEST_PICTURE} bytes, found more")
    return content


class _CheckedHeader(tarfile.TarInfo):
    """A tar header that is not skipped if it is damaged."""

    @classmethod
    def fromtarfile(cls, shard: tarfile.TarFile) -> Self:
        """Raises ReadError for a damaged or missing header, which tarfile itself takes for the end of the tar."""
        try:
            return super().fromtarfile(shard)
        except tarfile.HeaderError as error:
            if shard.offset == 0 or isinstance(error, tarfile.EOFHeaderError):  # type: ignore[attr-defined]
                raise
            raise tarfile.ReadError(f"{error} at byte {shard.offset}") from error


def _refuse_link(target: str) -> bytes:
    raise InvalidImage(f"expected a picture, found a link to {target}")


def _tar_members(path: str, raw: Any) -> Iterator[tuple[str, Any]]:
    """The id of every picture in a tar, and a function that returns its bytes or raises InvalidImage."""
    with tarfile.open(fileobj=raw, mode="r|*", tarinfo=_CheckedHeader) as shard:
        for member in shard:
            if member.isfile() and has_picture_suffix(member.name):
                file = shard.extractfile(member)
                content = file.read(min(member.size, _LARGEST_PICTURE + 1)) if file else b""
                if len(content) < min(member.size, _LARGEST_PICTURE):
                    raise tarfile.ReadError(f"{member.name}: expected {member.size} bytes, found {len(content)}")
                yield f"{path}/{member.name}", partial(_check_size, content)
            elif (member.islnk() or member.issym()) and has_picture_suffix(member.name):
                yield f"{path}/{member.name}", partial(_refuse_link, member.linkname)
            shard.members = []  # type: ignore[attr-defined]  # else tarfile keeps every header


def row_ids(path: str, rows: range) -> pa.Array:
    """The ids `path[row]` as strings. Bytes of the path that are not UTF-8 are escaped."""
    import pyarrow as pa
    import pyarrow.compute as pc

    name = path.encode(errors="backslashreplace").decode()
    numbers = pa.array(np.arange(rows.start, rows.stop)).cast(pa.string())
    return pc.binary_join_element_wise(f"{name}[", numbers, "]", "")


def _column_pixels(images: pa.Array, shape: Shape) -> tuple[NDArray[np.uint8], dict[int, str]]:
    """A Parquet column of pixels -> uint8 (n, C, H, W), and errors: row -> reason, for nulls and other lengths."""
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
