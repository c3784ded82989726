"""Reads idx files of unsigned bytes, gzipped or not. In: a path or an open file. Out: uint8 arrays, block by block.

MNIST's format (LeCun, http://yann.lecun.com/exdb/mnist/): two zero bytes, type, number of dimensions, each size as a
big-endian 32-bit integer, values. Memory grows with the bytes in the file, not with the sizes that its header claims.
"""

from __future__ import annotations

import gzip
import math
import os
import struct
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, ClassVar, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from common.files import reason

if TYPE_CHECKING:
    from typing_extensions import Self

T = TypeVar("T")

_GZIP = b"\x1f\x8b"
_BYTE, _TYPES = 0x08, b"\x08\x09\x0b\x0c\x0d\x0e"
_MOST_DIMENSIONS = 4
_LARGEST_ITEM = 1 << 26  # bytes
_PORTION = 1 << 18  # bytes of a block while iterating


def is_idx(path: str) -> bool:
    """Whether the file, gzipped or not, begins as an idx file of 1 to 4 dimensions does; False if it is unreadable."""
    try:
        with Path(path).open("rb") as raw, _unzipped(raw) as data:
            start = data.read(4)
    except (OSError, ValueError, EOFError, zlib.error):
        return False
    return len(start) == 4 and start[:2] == b"\0\0" and start[2] in _TYPES and 1 <= start[3] <= _MOST_DIMENSIONS


class IdxFile:
    """An open idx file; iterating yields items uint8 of `item_shape`.

    dimensions: of an item: 2 for images, 0 for labels.
    raw:        an open file to read instead of opening `path`, which then only names it in errors.
    count:      the number of items that the header claims.
    header:     the header's bytes.
    Raises the class's `error`, also while iterating, for another format, missing bytes and extra bytes.
    """

    error: ClassVar[type[Exception]] = ValueError

    def __init__(self, path: str, dimensions: int, raw: BinaryIO | None = None) -> None:
        self.name = path
        with ExitStack() as stack:
            try:
                self._data = _unzipped(raw or stack.enter_context(Path(path).open("rb")))
            except (OSError, ValueError) as error:
                raise self.error(f"{path}: expected an idx file, found {reason(error)}") from error
            self.count, self.item_shape = self._header(dimensions)
            self.close = stack.pop_all().close

    def _header(self, dimensions: int) -> tuple[int, tuple[int, ...]]:
        magic, expected = self._read(4), bytes([0, 0, _BYTE, 1 + dimensions])
        if magic != expected:
            raise self.error(
                f"{self.name}: expected the idx magic {expected.hex()}, unsigned bytes in {1 + dimensions} dimensions, "
                f"found {magic.hex() or 'nothing'}"
            )
        sizes = self._read(4 * (1 + dimensions))
        if len(sizes) < 4 * (1 + dimensions):
            raise self.error(f"{self.name}: expected {1 + dimensions} sizes of 4 bytes, found {len(sizes)} bytes")
        self.header = magic + sizes
        count, *shape = struct.unpack(f">{1 + dimensions}I", sizes)
        if not 1 <= math.prod(shape) <= _LARGEST_ITEM:
            raise self.error(f"{self.name}: expected items of 1 to {_LARGEST_ITEM} bytes, found the shape {shape}")
        return count, tuple(shape)

    @property
    def is_zipped(self) -> bool:
        """Whether the file is gzipped: reading an item then costs the reading of all items before it."""
        return isinstance(self._data, gzip.GzipFile)

    def __iter__(self) -> Iterator[NDArray[np.uint8]]:
        for block in self.blocks(0, self.count, _PORTION):
            yield from block

    def blocks(self, start: int, stop: int, most_bytes: int) -> Iterator[NDArray[np.uint8]]:
        """Yields items `start` to `stop`, exclusive, as uint8 arrays (n, ...) of at most `most_bytes`, or of one item.

        Call it once, and do not iterate as well: the file's position moves on and is never reset.
        """
        item_bytes = math.prod(self.item_shape)
        block_items = max(1, most_bytes // item_bytes)
        self._call(self._data.seek, start * item_bytes, os.SEEK_CUR)
        for first in range(start, stop, block_items):
            expected_items = min(block_items, stop - first)
            data = self._read(expected_items * item_bytes)
            items = len(data) // item_bytes
            yield np.frombuffer(data, np.uint8, items * item_bytes).reshape(items, *self.item_shape)
            if items < expected_items:
                starts_behind_end = first == start > 0 and not data  # a seek beyond the end raises no error
                found = (
                    f"at most {start}" if starts_behind_end else f"{first + items} and {len(data) % item_bytes} bytes"
                )
                raise self.error(f"{self.name}: expected {self._expected()}, found {found}")
        if stop == self.count and self._read(1):  # reading a zipped file's end also compares its checksum
            raise self.error(f"{self.name}: expected {self._expected()}, found more bytes")

    def _expected(self) -> str:
        return f"{self.count} items of {math.prod(self.item_shape)} bytes"

    def _read(self, size: int) -> bytes:
        return self._call(self._data.read, size)

    def _call(self, method: Callable[..., T], *arguments: int) -> T:
        """Calls a method of the open file. Raises the class's `error`."""
        try:
            return method(*arguments)
        except (OSError, EOFError, zlib.error) as error:
            raise self.error(f"{self.name}: expected an idx file, found unreadable data: {error}") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *unused: object) -> None:
        self.close()


def _unzipped(raw: BinaryIO) -> BinaryIO:
    zipped = raw.read(len(_GZIP)) == _GZIP
    raw.seek(0)
    return cast(BinaryIO, gzip.GzipFile(fileobj=raw)) if zipped else raw
