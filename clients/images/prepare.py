"""A picture to the images that a model's config asks for: "ink" or "photo"."""

from typing import Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from clients.errors import BlankImage
from clients.images.drawing import drawing_inputs
from clients.images.ink import LEAST_CONTRAST
from clients.images.photo import photo_to_model_input

Preprocessing = Literal["ink", "photo"]


def prepare(image: Image.Image, shape: tuple[int, int, int], preprocessing: Preprocessing) -> NDArray[np.uint8]:
    """Upright picture, any mode and size -> uint8 `shape` (C, H, W); raises InvalidImage."""
    inputs, _ = prepare_shapes(image, shape, preprocessing, split=False)
    return np.asarray(inputs[0])


def prepare_shapes(
    image: Image.Image, shape: tuple[int, int, int], preprocessing: Preprocessing, split: bool
) -> tuple[NDArray[np.uint8], int]:
    """uint8 (n, C, H, W) and the number of shapes, 1 for a photo; raises InvalidImage."""
    if preprocessing == "ink":
        return drawing_inputs(image, shape[1:], split)
    return photo_to_model_input(image, shape)[np.newaxis], 1


def check_ready(pixels: NDArray[np.uint8], preprocessing: Preprocessing) -> None:
    if preprocessing == "ink" and int(pixels.max()) <= LEAST_CONTRAST:
        raise BlankImage(
            f"no ink found: expected a level above {LEAST_CONTRAST:.0f} of 255 somewhere, found at most {pixels.max()}"
        )
