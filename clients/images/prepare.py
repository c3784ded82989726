"""Turns a picture into a model's inputs, by the preprocessing in the model's config: "ink" or "photo"."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from clients.errors import BlankImage
from clients.images.decode import photo_to_model_input
from clients.images.ink import LEAST_CONTRAST
from clients.images.mnist_layout import drawing_inputs
from clients.images.resize_and_crop import resize_and_crop
from clients.images.training_photo_match import Looks, check_photo
from common.preprocessing_settings import Framing, Preprocessing


@dataclass(frozen=True)
class Prepared:
    """A picture as inputs of a model.

    images: uint8 (n, C, H, W).
    shapes: number of separate shapes in the picture, 1 for a photo.
    notes:  for the user.
    suits:  whether the photo looks like the model's training pictures; true if this was not checked.
    """

    images: NDArray[np.uint8]
    shapes: int = 1
    notes: tuple[str, ...] = ()
    suits: bool = True

    @property
    def image(self) -> NDArray[np.uint8]:
        """The first image, uint8 (C, H, W): the only one of a picture that is not split."""
        return np.asarray(self.images[0])


@dataclass(frozen=True)
class Preparation:
    """How a model reads pictures.

    image_shape: (channels, height, width).
    looks:       how the training photos look; None: unknown. A photo with another background is inverted.
    framing:     how to resize and crop for a model that this project has not trained. It replaces the steps for photos
                 and `looks`.
    """

    image_shape: tuple[int, int, int]
    preprocessing: Preprocessing
    looks: Looks | None
    framing: Framing | None

    @property
    def reads_full_size(self) -> bool:
        """Whether a JPEG must be decoded at its full size, as the processor does that `framing` repeats."""
        return self.framing is not None

    def prepare(self, image: Image.Image, split: bool = False) -> Prepared:
        """Upright picture, any mode and size -> the model's input; with `split` an input for each shape of ink.

        Raises InvalidImage.
        """
        if self.preprocessing == "ink":
            return Prepared(*drawing_inputs(image, self.image_shape[1:], split))
        if self.framing is not None:
            return Prepared(resize_and_crop(image, self.image_shape, self.framing)[np.newaxis])
        pixels, note, suits = check_photo(photo_to_model_input(image, self.image_shape), self.looks)
        return Prepared(pixels[np.newaxis], notes=(note,) if note else (), suits=suits)

    def prepare_array(self, image: NDArray[np.uint8], split: bool = False) -> Prepared:
        """As `prepare`, for a grey image uint8 (height, width), as of an idx file.

        An image of the model's shape stays unchanged, because models are trained on such images.
        """
        if self.framing is not None or (1, *image.shape) != self.image_shape:
            return self.prepare(Image.fromarray(image), split)
        if self.preprocessing == "ink" and int(image.max()) <= LEAST_CONTRAST:
            expected = f"a level above {LEAST_CONTRAST:.0f} of 255 somewhere"
            raise BlankImage(f"no ink found: expected {expected}, found at most {image.max()}")
        return Prepared(image[np.newaxis, np.newaxis])


def prepare(
    image: Image.Image,
    shape: tuple[int, int, int],
    preprocessing: Preprocessing,
    looks: Looks | None = None,
    framing: Framing | None = None,
) -> NDArray[np.uint8]:
    """Upright picture, any mode and size -> uint8 `shape` (C, H, W). Raises InvalidImage."""
    return Preparation(shape, preprocessing, looks, framing).prepare(image).image
