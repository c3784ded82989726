"""Turns a picture into the images that a model reads, by the preprocessing in its config: "ink" or "photo"."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from clients.errors import BlankImage
from clients.images.decode import photo_to_model_input
from clients.images.drawing import drawing_inputs
from clients.images.framing import framed
from clients.images.ink import LEAST_CONTRAST
from clients.images.looks import Looks, suited
from common.framing import Framing

Preprocessing = Literal["ink", "photo"]


@dataclass(frozen=True)
class Prepared:
    """images: uint8 (n, C, H, W). shapes: separate shapes in the picture, 1 for a photo. notes: for the user.

    suits: the photo looks like those that the model was trained on; true if that was not judged.
    """

    images: NDArray[np.uint8]
    shapes: int = 1
    notes: tuple[str, ...] = ()
    suits: bool = True


def prepare(
    image: Image.Image,
    shape: tuple[int, int, int],
    preprocessing: Preprocessing,
    looks: Looks | None = None,
    framing: Framing | None = None,
) -> NDArray[np.uint8]:
    """Upright picture, any mode and size -> uint8 `shape` (C, H, W); raises InvalidImage."""
    return np.asarray(prepare_shapes(image, shape, preprocessing, looks, split=False, framing=framing).images[0])


def prepare_shapes(
    image: Image.Image,
    shape: tuple[int, int, int],
    preprocessing: Preprocessing,
    looks: Looks | None,
    split: bool,
    framing: Framing | None = None,
) -> Prepared:
    """Upright picture, any mode and size -> the model's images. Raises InvalidImage.

    looks: a photo is inverted if its background is another. split: ink gives an image per separate shape.
    framing: the steps of a foreign model's processor, which replace those for photos; `looks` does not count then.
    """
    if preprocessing == "ink":
        return Prepared(*drawing_inputs(image, shape[1:], split))
    if framing is not None:
        return Prepared(framed(image, shape, framing)[np.newaxis])
    pixels, note, suits = suited(photo_to_model_input(image, shape), looks)
    return Prepared(pixels[np.newaxis], notes=(note,) if note else (), suits=suits)


def check_ready(pixels: NDArray[np.uint8], preprocessing: Preprocessing) -> None:
    if preprocessing == "ink" and int(pixels.max()) <= LEAST_CONTRAST:
        raise BlankImage(
            f"no ink found: expected a level above {LEAST_CONTRAST:.0f} of 255 somewhere, found at most {pixels.max()}"
        )
