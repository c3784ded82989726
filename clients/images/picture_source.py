"""Reads files and gives their pictures one by one; an idx file gives all its images."""

import io
import os
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
from clients.images.decode import read_image
from clients.images.idx import IdxFile
from clients.images.paths import SORTED, STANDARD_INPUT, Report, expand, has_image_suffix
from clients.images.prepare import Preparation, Prepared
from common.idx import is_idx
from common.pictures import DRAFTED

_LARGEST_STREAM = 1 << 27  # bytes


@dataclass(frozen=True)
class Picture:
    """A picture named by its path, or by path[number] in an idx file."""

    name: str
    image: Image.Image | NDArray[np.uint8]  # an idx file gives an array (height, width)
    source: str | io.BytesIO | None = None  # of the image, to decode it again

    def as_inputs(self, model: Preparation, split: bool) -> Prepared:
        """As `Preparation.prepare`, or `prepare_array` for an idx image."""
        if isinstance(self.image, np.ndarray):
            return model.prepare_array(self.image, split)
        return model.prepare(self._at_full_size(self.image) if model.reads_whole else self.image, split)

    def _at_full_size(self, image: Image.Image) -> Image.Image:
        """Decodes a reduced JPEG again: the processors that a framing repeats read a JPEG at its full size."""
        if self.source is None or not image.info.get(DRAFTED):
            return image
        if isinstance(self.source, io.BytesIO):
            self.source.seek(0)
        return read_image(self.source, full_size=True)


class Pictures:
    """The pictures of paths, which are expanded and reported as by `expand`; iterate once.

    `failed` is also called for unreadable files, `noted` for files of several pages or frames. The first SORTED names
    are held in memory, further names are read as they come.
    """

    def __init__(self, paths: Sequence[str], failed: Report, noted: Report) -> None:
        self._failed, self._noted = failed, noted
        self._further = expand(paths, failed, noted)
        self._names = list(islice(self._further, SORTED))

    def count(self) -> int | None:
        """The number of pictures by file names and idx headers, decoding nothing; None from SORTED files on."""
        return sum(map(_claimed, self._names)) if len(self._names) < SORTED else None

    def __iter__(self) -> Iterator[Picture]:
        for name in chain(self._names, self._further):
            try:
                yield from _read(name, partial(self._noted, name))
            except InvalidImage as error:
                self._failed(name, str(error))
            except OSError as error:
                self._failed(name, f"expected a picture, found {error.strerror}")


def _claimed(name: str) -> int:
    if has_image_suffix(name) or not os.path.isfile(name) or not is_idx(name):  # noqa: PTH113 (Path.is_file raises)
        return 1
    try:
        with IdxFile(name, dimensions=2) as images:
            return images.count
    except InvalidImage:
        return 1


def _read(name: str, noted: Callable[[str], object]) -> Iterator[Picture]:
    if name == STANDARD_INPUT:
        yield _read_once(sys.stdin.buffer, name, noted)
    elif Path(name).exists() and not Path(name).is_file():  # a pipe such as <(command)
        with Path(name).open("rb") as pipe:
            piped = _read_once(pipe, name, noted)
        yield piped
    elif is_idx(name):
        with IdxFile(name, dimensions=2) as images:
            if not images.count:
                raise InvalidImage(f"{name}: expected images, found an idx file without any")
            for number, image in enumerate(images):
                yield Picture(f"{name}[{number}]", image)
    else:
        yield Picture(name, read_image(name, noted), name)


class _Held(io.BytesIO):
    name = ""


def _read_once(stream: IO[bytes], name: str, noted: Callable[[str], object]) -> Picture:
    held = _Held(stream.read(_LARGEST_STREAM + 1))
    held.name = name
    if held.getbuffer().nbytes > _LARGEST_STREAM:
        raise InvalidImage(f"{name}: expected a picture of at most {_LARGEST_STREAM} bytes, found more")
    return Picture(name, read_image(held, noted), held)
