"""Turns pictures into images for models of photos.

Nothing is inverted: Fashion-MNIST's garments are light on black, so pictures for its models must be too. A picture of
the model's size stays unchanged.
"""

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from clients.errors import InvalidImage
from clients.images.grey import eight_bits, on_white


def photo_to_model_input(image: Image.Image, shape: tuple[int, int, int]) -> NDArray[np.uint8]:
    """The picture's middle in the model's aspect ratio, resized with antialiasing.

    image: upright, any mode and size; transparent pixels become white.
    shape: (channels, height, width); 1 channel is grey, 3 are RGB.
    Returns uint8 of that shape. Raises InvalidImage for other numbers of channels and colour spaces without RGB (Lab).
    """
    channels, height, width = shape
    if channels not in (1, 3):
        raise InvalidImage(f"image: expected a model of 1 or 3 channels, found {channels}")
    try:
        coloured = on_white(eight_bits(image)).convert("L" if channels == 1 else "RGB")
    except ValueError as error:
        name = getattr(image, "filename", "") or "image"
        raise InvalidImage(f"{name}: expected grey or colour, found the mode {image.mode}: {error}") from error
    pixels = np.asarray(ImageOps.fit(coloured, (width, height)))  # (H, W) or (H, W, 3)
    return np.ascontiguousarray(pixels.reshape(height, width, channels).transpose(2, 0, 1))  # (C, H, W)
