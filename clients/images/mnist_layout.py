"""Turns pictures of drawings into inputs for models of ink, laid out as MNIST's digits.

MNIST's recipe (LeCun, Cortes, Burges, http://yann.lecun.com/exdb/mnist/): the digit is scaled to a 20x20 box, with its
aspect ratio and antialiasing; its centre of mass moves to pixel (14, 14) of the 28x28 image.
"""

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFilter, ImageOps

from clients.errors import InvalidImage
from clients.images.grey import to_grey
from clients.images.ink import Pixels, find_ink, scaled_to
from clients.images.split_shapes import split_shapes

_BOX_SHARE = 20 / 28  # of the image's side
_THINNEST = 1.2  # pixels of the 20x20 box; 99 % of MNIST's digits have wider strokes
_COMMON_WIDTH = 2.0  # pixels of the 20x20 box; strokes below _THINNEST are widened to this width
_WIDENED_SIDE = 4  # times the box; strokes are widened at this scale


def to_model_input(image: Image.Image, size: tuple[int, int] = (28, 28)) -> NDArray[np.uint8]:
    """Turns the picture of a digit into an image like MNIST's digits.

    image: upright, any mode and size; dark on light, light on dark, or transparent.
    size:  (height, width) in pixels.
    Returns uint8 (1, height, width), 0 = background, 255 = ink.
    Raises BlankImage for a picture without ink, InvalidImage for a mode that Pillow does not convert.
    """
    inputs, _, _ = drawing_inputs(image, size)
    return np.asarray(inputs[0])


def drawing_inputs(
    image: Image.Image, size: tuple[int, int] = (28, 28), split: bool = False
) -> tuple[NDArray[np.uint8], int, tuple[str, ...]]:
    """As `to_model_input`, also for a line of digits.

    Returns uint8 (n, 1, height, width), a single image or with `split` an image per shape, left to right; the number of
    separate shapes; notes for the user.
    """
    try:
        ink, notes = find_ink(to_grey(image))
    except InvalidImage as error:
        raise type(error)(f"{getattr(image, 'filename', '') or 'image'}: {error}") from error
    shapes = split_shapes(ink)
    images = [_centred(_scaled(shape, size), size) for shape in (shapes if split else [ink])]
    return np.stack(images)[:, np.newaxis], len(shapes), notes


def _scaled(ink: Pixels, size: tuple[int, int]) -> Pixels:
    """Ink (h, w) -> ink that fills the box, at most 20x20 of 28x28 pixels; the largest value becomes 255."""
    box = round(min(size) * _BOX_SHARE)
    picture = Image.fromarray(ink)
    width, pixel = _stroke_width(ink), max(ink.shape) / 20  # a pixel of the 20x20 box
    if width < _THINNEST * pixel:
        picture = _widened(picture, _COMMON_WIDTH * pixel - width, box)
    scaled = np.asarray(picture.resize(scaled_to(picture.size, box), Image.Resampling.HAMMING))
    return np.asarray(np.clip(scaled * (255 / scaled.max()), 0, 255), dtype=np.float32)


def _stroke_width(ink: Pixels) -> float:
    """Mean width in pixels of the strokes in ink (h, w).

    It is 2 area / outline; by Crofton's formula the outline is pi/4 of the number of pixel edges.
    """
    mask = np.pad(ink > 0.5 * ink.max(), 1)
    edges = np.count_nonzero(np.diff(mask, axis=0)) + np.count_nonzero(np.diff(mask, axis=1))
    return 2 * np.count_nonzero(mask) / (np.pi / 4 * edges)


def _widened(picture: Image.Image, missing: float, box: int) -> Image.Image:
    """A larger copy of a picture of mode "F", with strokes that are wider by `missing` pixels of the original."""
    enlarged = picture.resize(scaled_to(picture.size, _WIDENED_SIDE * box), Image.Resampling.BOX)
    reach = round(missing / 2 * max(enlarged.size) / max(picture.size))
    return ImageOps.expand(enlarged, reach).filter(ImageFilter.MaxFilter(2 * reach + 1))


def _centred(ink: Pixels, size: tuple[int, int]) -> NDArray[np.uint8]:
    """Ink (h, w) -> uint8 `size`, its centre of mass in the middle, as far as all ink stays inside."""
    image = np.zeros(size, dtype=np.uint8)
    corner = []
    for axis, (extent, inner) in enumerate(zip(size, ink.shape, strict=True)):
        mass = ink.sum(axis=1 - axis)
        centre = float(mass @ np.arange(inner) / mass.sum())
        corner.append(min(max(round(extent // 2 - centre), 0), extent - inner))
    top, left = corner
    image[top : top + ink.shape[0], left : left + ink.shape[1]] = np.rint(ink)
    return image
