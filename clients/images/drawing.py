"""Turns pictures of drawings into images for models of ink.

MNIST's recipe (LeCun, Cortes, Burges, http://yann.lecun.com/exdb/mnist/): the digit is scaled to a 20x20 box, with its
aspect ratio and antialiasing; its centre of mass moves to pixel (14, 14) of a 28x28 field.
"""

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFilter

from clients.errors import InvalidImage
from clients.images.grey import to_grey
from clients.images.ink import Pixels, find_ink, scaled_to
from clients.images.split_shapes import shapes_of

_BOX_SHARE = 20 / 28  # of the field's side
_THINNEST = 1.2  # pixels of a 20x20 box; 99 % of MNIST's digits have wider strokes
_COMMON_WIDTH = 2.0  # pixels of that box; thinner strokes are widened to it
_DRAWN_SIDE = 4  # times the box; strokes are widened at this scale


def to_model_input(image: Image.Image, size: tuple[int, int] = (28, 28)) -> NDArray[np.uint8]:
    """Turns the picture of a digit into an image like MNIST's.

    image: upright, any mode and size; dark on light, light on dark, or transparent.
    size:  (height, width) in pixels.
    Returns uint8 (1, height, width), 0 = background, 255 = ink.
    Raises BlankImage without ink, InvalidImage for a mode that Pillow does not convert.
    """
    inputs, _, _ = drawing_inputs(image, size)
    return np.asarray(inputs[0])


def drawing_inputs(
    image: Image.Image, size: tuple[int, int] = (28, 28), split: bool = False
) -> tuple[NDArray[np.uint8], int, tuple[str, ...]]:
    """As `to_model_input`, also for a line of digits.

    Returns uint8 (n, 1, height, width): one image, or with `split` an image per shape, left to right; the number of
    shapes; notes for the user.
    """
    try:
        ink, notes = find_ink(to_grey(image))
    except InvalidImage as error:
        raise type(error)(f"{getattr(image, 'filename', '') or 'image'}: {error}") from error
    shapes = shapes_of(ink)
    fields = [_centre(_fit(each, size), size) for each in (shapes if split else [ink])]
    return np.stack(fields)[:, np.newaxis], len(shapes), notes


def _fit(ink: Pixels, size: tuple[int, int]) -> Pixels:
    """Ink (h, w) -> at most 20x20 of a 28x28 field, values 0 to 255."""
    box = round(min(size) * _BOX_SHARE)
    picture = Image.fromarray(ink)
    width, pixel = _stroke_width(ink), max(ink.shape) / 20
    if width < _THINNEST * pixel:
        picture = _widened(picture, _COMMON_WIDTH * pixel - width, box)
    scaled = np.asarray(picture.resize(scaled_to(picture.size, box), Image.Resampling.HAMMING))
    return np.asarray(np.clip(scaled * (255 / scaled.max()), 0, 255), dtype=np.float32)


def _stroke_width(ink: Pixels) -> float:
    """Mean stroke width of ink (h, w) in pixels: 2 area / outline, outline = pi/4 pixel edges (Crofton's formula)."""
    mask = np.pad(ink > 0.5 * ink.max(), 1)
    edges = np.count_nonzero(np.diff(mask, axis=0)) + np.count_nonzero(np.diff(mask, axis=1))
    return 2 * np.count_nonzero(mask) / (np.pi / 4 * edges)


def _widened(picture: Image.Image, missing: float, box: int) -> Image.Image:
    """Draws a picture of mode "F" larger, with strokes wider by `missing` of its pixels."""
    drawn = picture.resize(scaled_to(picture.size, _DRAWN_SIDE * box), Image.Resampling.BOX)
    reach = round(missing / 2 * max(drawn.size) / max(picture.size))
    wide = Image.new("F", (drawn.width + 2 * reach, drawn.height + 2 * reach))
    wide.paste(drawn, (reach, reach))
    return wide.filter(ImageFilter.MaxFilter(2 * reach + 1))


def _centre(ink: Pixels, size: tuple[int, int]) -> NDArray[np.uint8]:
    """Ink (h, w) -> uint8 `size`, centred by mass as far as all ink stays inside."""
    field = np.zeros(size, dtype=np.uint8)
    corner = []
    for axis, (extent, inner) in enumerate(zip(size, ink.shape, strict=True)):
        mass = ink.sum(axis=1 - axis)
        centre = float(mass @ np.arange(inner) / mass.sum())
        corner.append(min(max(round(extent // 2 - centre), 0), extent - inner))
    top, left = corner
    field[top : top + ink.shape[0], left : left + ink.shape[1]] = np.rint(ink)
    return field
