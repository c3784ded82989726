"""Files in, pictures out, one at a time: a picture of any format, or all the images of an idx file."""

import io
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from clients.decode import InvalidImage, read_image
from clients.idx import IdxFile, is_idx
from clients.paths import STANDARD_INPUT, Report, expand, has_image_suffix
from clients.preprocess import Preprocessing, prepare

_LARGEST_STREAM = 1 << 27  # bytes of an image in a pipe, which must be held to be decoded


@dataclass(frozen=True)
class Picture:
    """An image that was read: its path, with its number in brackets where the file has several, and its pixels."""

    name: str
    image: Image.Image | NDArray[np.uint8]  # the array is of an idx file, (height, width)

    def as_input(self, shape: tuple[int, int, int], preprocessing: Preprocessing) -> NDArray[np.uint8]:
        """uint8 (C, H, W) for a model of that shape; raises InvalidImage where there is nothing that it could read.

        An image of an idx file that has the shape already is what models are trained on, and stays as it is.
        """
        if not isinstance(self.image, np.ndarray):
            return prepare(self.image, shape, preprocessing)
        if (1, *self.image.shape) == shape:
            return self.image[np.newaxis]
        return prepare(Image.fromarray(self.image), shape, preprocessing)


def read_pictures(paths: Sequence[str], failed: Report, noted: Report) -> Iterator[Picture]:
    """The pictures that the paths stand for, in their order; see `clients.paths`.

    failed: is told of every file that cannot be read, and of paths with nothing to read.
    noted:  is told of folders of which files are left out.
    """
    for name in expand(paths, failed, noted):
        try:
            yield from _read(name)
        except InvalidImage as error:
            failed(name, str(error))


def count_pictures(paths: Sequence[str]) -> int:
    """How many pictures there will be, by the names and the headers of idx files; none is read."""
    return sum(_claimed(name) for name in expand(paths, lambda path, what: None, lambda path, what: None))


def _claimed(name: str) -> int:
    if has_image_suffix(name) or not Path(name).is_file() or not is_idx(name):
        return 1
    try:
        with IdxFile(name, dimensions=2) as images:
            return images.count
    except InvalidImage:
        return 1


def _read(name: str) -> Iterator[Picture]:
    """The pictures in one file; raises InvalidImage."""
    if name == STANDARD_INPUT:
        yield Picture(name, _read_once(sys.stdin.buffer, name))
    elif Path(name).exists() and not Path(name).is_file():  # a pipe, as a shell's <(command) is one
        try:
            with Path(name).open("rb") as pipe:
                piped = _read_once(pipe, name)
        except OSError as error:
            raise InvalidImage(f"{name}: expected an image, found {error.strerror}") from error
        yield Picture(name, piped)
    elif is_idx(name):
        with IdxFile(name, dimensions=2) as images:
            if not images.count:
                raise InvalidImage(f"{name}: expected images, found an idx file of none")
            for number, image in enumerate(images):
                yield Picture(f"{name}[{number}]", image)
    else:
        yield Picture(name, read_image(name))


class _Held(io.BytesIO):
    """Bytes that an error can name."""

    name = ""


def _read_once(stream: IO[bytes], name: str) -> Image.Image:
    """An image from a stream that cannot go back."""
    held = _Held(stream.read(_LARGEST_STREAM + 1))
    held.name = name
    if held.getbuffer().nbytes > _LARGEST_STREAM:
        raise InvalidImage(f"{name}: expected an image of at most {_LARGEST_STREAM} bytes, found more")
    return read_image(held)
