"""Files in, pictures out one by one; an idx file gives every image."""

import io
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from clients.errors import InvalidImage
from clients.images.decode import DRAFTED, read_image
from clients.images.idx import IdxFile
from clients.images.looks import Looks
from clients.images.paths import STANDARD_INPUT, Report, expand, has_image_suffix
from clients.images.prepare import Prepared, Preprocessing, check_ready, prepare_shapes
from common.framing import Framing
from common.idx import is_idx

_LARGEST_STREAM = 1 << 27  # bytes


@dataclass(frozen=True)
class Picture:
    """Named by its path; images of an idx file add [number]."""

    name: str
    image: Image.Image | NDArray[np.uint8]  # an idx file gives an array (height, width)
    source: str | io.BytesIO | None = None  # of the image, to decode it again

    def as_inputs(
        self,
        shape: tuple[int, int, int],
        preprocessing: Preprocessing,
        looks: Looks | None,
        split: bool,
        framing: Framing | None = None,
    ) -> Prepared:
        """As `prepare_shapes`, but an idx image of the model's shape stays unchanged: models are trained on those."""
        if not isinstance(self.image, np.ndarray):
            image = self.image if framing is None else self._whole(self.image)
            return prepare_shapes(image, shape, preprocessing, looks, split, framing)
        if framing is None and (1, *self.image.shape) == shape:
            check_ready(self.image, preprocessing)
            return Prepared(self.image[np.newaxis, np.newaxis])
        return prepare_shapes(Image.fromarray(self.image), shape, preprocessing, looks, split, framing)

    def _whole(self, image: Image.Image) -> Image.Image:
        """Decoded in full: no processor of another origin reads a JPEG at half its size."""
        if self.source is None or not image.info.get(DRAFTED):
            return image
        if isinstance(self.source, io.BytesIO):
            self.source.seek(0)
        return read_image(self.source, whole=True)


def read_pictures(paths: Sequence[str], failed: Report, noted: Report) -> Iterator[Picture]:
    """As `expand`; `failed` is also called for unreadable files, `noted` for files of several pages or frames."""
    for name in expand(paths, failed, noted):
        try:
            yield from _read(name, partial(noted, name))
        except InvalidImage as error:
            failed(name, str(error))
        except OSError as error:
            failed(name, f"expected an image, found {error.strerror}")


def count_pictures(paths: Sequence[str]) -> int:
    """By file names and idx headers; decodes nothing."""
    return sum(_claimed(name) for name in expand(paths, lambda path, what: None, lambda path, what: None))


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
        raise InvalidImage(f"{name}: expected an image of at most {_LARGEST_STREAM} bytes, found more")
    return Picture(name, read_image(held, noted), held)
