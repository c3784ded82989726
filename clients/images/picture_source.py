"""Reads the pictures of files one after the other. An idx file has many images."""

import io
import os
import select
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from clients.errors import InvalidImage
from clients.images.decode import IdxFile, read_image
from clients.images.paths import SORTED, STANDARD_INPUT, Report, expand
from clients.images.prepare import Preparation, Prepared
from common.idx import is_idx
from common.picture_formats import has_picture_suffix
from common.pictures import DRAFTED

_LARGEST_STREAM = 1 << 27  # bytes
_CHUNK = 1 << 16  # bytes
SILENT_S = 30.0  # how long a pipe may give nothing


@dataclass(frozen=True)
class Picture:
    """A picture. Its name is its path, or path[number] for an image of an idx file."""

    name: str
    image: Image.Image | NDArray[np.uint8]  # of an idx file an array (height, width)
    source: str | io.BytesIO | None = None  # to decode the image again; None for an idx file

    def as_inputs(self, model: Preparation, split: bool) -> Prepared:
        """As `Preparation.prepare`, for an idx image as `Preparation.prepare_array`."""
        if isinstance(self.image, np.ndarray):
            return model.prepare_array(self.image, split)
        return model.prepare(self._at_full_size(self.image) if model.reads_full_size else self.image, split)

    def _at_full_size(self, image: Image.Image) -> Image.Image:
        """Decodes a JPEG again that was decoded at a reduced size; other images stay."""
        if self.source is None or not image.info.get(DRAFTED):
            return image
        if isinstance(self.source, io.BytesIO):
            self.source.seek(0)
        return read_image(self.source, full_size=True)


class Pictures:
    """Iterates over the pictures of paths, which `expand` expands; can be iterated once.

    on_failure: as of `expand`; also called for unreadable files.
    on_note:    as of `expand`; also called for files of several pages or frames.
    The first SORTED names are held in memory, further names are read as they come.
    """

    def __init__(self, paths: Sequence[str], on_failure: Report, on_note: Report) -> None:
        self._on_failure, self._on_note = on_failure, on_note
        self._further_names = expand(paths, on_failure, on_note)
        self._names = list(islice(self._further_names, SORTED))

    def count(self) -> int | None:
        """The number of pictures by file names and idx headers, without decoding. None for SORTED files or more."""
        return sum(map(_count, self._names)) if len(self._names) < SORTED else None

    def __iter__(self) -> Iterator[Picture]:
        for name in chain(self._names, self._further_names):
            try:
                yield from _read(name, partial(self._on_note, name))
            except InvalidImage as error:
                self._on_failure(name, str(error))
            except OSError as error:
                self._on_failure(name, f"expected a picture, found {error.strerror}")


def _count(name: str) -> int:
    """The number of images in the header of an idx file; 1 for another file."""
    if has_picture_suffix(name) or not os.path.isfile(name) or not is_idx(name):  # noqa: PTH113 (Path.is_file raises)
        return 1
    try:
        with IdxFile(name, dimensions=2) as images:
            return images.count
    except InvalidImage:
        return 1


def _read(name: str, on_note: Callable[[str], object]) -> Iterator[Picture]:
    """The pictures of a file. Raises InvalidImage, and OSError for a file that cannot be opened."""
    if name == STANDARD_INPUT:
        yield _read_stream(sys.stdin.buffer, name, on_note)
    elif Path(name).exists() and not Path(name).is_file():  # a pipe such as <(command)
        yield _picture(_read_pipe(name), name, on_note)
    elif is_idx(name):
        with IdxFile(name, dimensions=2) as images:
            if not images.count:
                raise InvalidImage(f"{name}: expected images, found an idx file without any")
            for number, image in enumerate(images):
                yield Picture(f"{name}[{number}]", image)
    else:
        yield Picture(name, read_image(name, on_note), name)


class _NamedBytes(io.BytesIO):
    name = ""  # for the messages of `read_image`


def _read_stream(stream: IO[bytes], name: str, on_note: Callable[[str], object]) -> Picture:
    """Reads a stream that cannot be read twice."""
    return _picture(stream.read(_LARGEST_STREAM + 1), name, on_note)


def _read_pipe(name: str) -> bytes:
    """The bytes of a pipe or a device, at most one more than _LARGEST_STREAM.

    Raises InvalidImage if nothing comes for SILENT_S: opening or reading a pipe without a writer would never return.
    """
    descriptor, content = os.open(name, os.O_RDONLY | os.O_NONBLOCK), bytearray()
    try:
        while len(content) <= _LARGEST_STREAM:
            if not select.select([descriptor], [], [], SILENT_S)[0]:
                raise InvalidImage(f"{name}: expected a picture, found a pipe that gave nothing for {SILENT_S:g} s")
            chunk = os.read(descriptor, min(_CHUNK, _LARGEST_STREAM + 1 - len(content)))
            if not chunk:
                break
            content += chunk
    finally:
        os.close(descriptor)
    return bytes(content)


def _picture(content: bytes, name: str, on_note: Callable[[str], object]) -> Picture:
    """Raises InvalidImage if the content has more bytes than _LARGEST_STREAM or is no picture."""
    file = _NamedBytes(content)
    file.name = name
    if len(content) > _LARGEST_STREAM:
        raise InvalidImage(f"{name}: expected a picture of at most {_LARGEST_STREAM} bytes, found more")
    return Picture(name, read_image(file, on_note), file)
