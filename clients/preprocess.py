"""Pixels to tensor: any picture in, the uint8 image that the model was trained on out.

A model says in its config which of two ways is its own: "photo", the picture as it is (clients.photo), or "ink", for
drawings and writing, one digit a picture.

MNIST was made so (LeCun, Cortes, Burges, http://yann.lecun.com/exdb/mnist/): the digit is scaled to fit a 20x20 box
with its aspect ratio kept, antialiasing makes it grey, and it is moved in a 28x28 field until its centre of mass is at
the field's centre. In the published files that centre is pixel (14, 14), counted from 0, and ink is 255 on 0.
A picture that is so already comes out nearly unchanged.

    read_image      file -> upright picture        decoding alone, with bounded memory (clients.decode)
    to_model_input  picture -> uint8 (1, 28, 28)   grey, paper removed (clients.ink), scaled, centred
    prepare         picture -> uint8 (C, H, W)     the one or the other, as the model says

Those who only prepare pictures find the errors here too.
"""

from typing import Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFilter

from clients.decode import BlankImage, ClientError, InvalidImage, read_image
from clients.depth import eight_bits
from clients.ink import Pixels, find_ink, scaled_to
from clients.photo import photo_to_model_input

__all__ = ["BlankImage", "ClientError", "InvalidImage", "Preprocessing", "prepare", "read_image", "to_model_input"]

Preprocessing = Literal["ink", "photo"]  # as a model's config names them

_BOX_SHARE = 20 / 28  # of the field is what the digit may fill
_SAMPLE_SIDE = 128  # pixels by which the colours of a picture are judged
_TELLING = 2.0  # times the spread of brightness is what makes one colour the better picture of the ink
_THINNEST = 1.2  # pixels of a 20x20 box; 99 % of MNIST's digits have wider strokes
_COMMON_WIDTH = 2.0  # pixels of that box, to which thinner strokes are widened
_DRAWN_SIDE = 4  # times the box is the size in which thin strokes are widened


def prepare(image: Image.Image, shape: tuple[int, int, int], preprocessing: Preprocessing) -> NDArray[np.uint8]:
    """Make of a picture, upright and of any mode and size, what a model with images of `shape` (C, H, W) reads.

    Returns uint8 (C, H, W). Raises InvalidImage as `to_model_input` and `clients.photo.photo_to_model_input` do.
    """
    return to_model_input(image, shape[1:]) if preprocessing == "ink" else photo_to_model_input(image, shape)


def to_model_input(image: Image.Image, size: tuple[int, int] = (28, 28)) -> NDArray[np.uint8]:
    """Make of a picture with one digit what the model was trained on.

    image: upright, any mode and size, dark ink on light paper or light on dark, also on nothing.
    size:  height and width of the field, in pixels.
    Returns uint8 (1, height, width), 0 = background, 255 = ink.
    Raises BlankImage when there is no ink, InvalidImage when the colour space has no grey (Lab).
    """
    try:
        ink = find_ink(_to_grey(image))
    except InvalidImage as error:
        raise type(error)(f"{getattr(image, 'filename', '') or 'image'}: {error}") from error
    return _centre(_fit(ink, size), size)[np.newaxis]


def _to_grey(image: Image.Image) -> Image.Image:
    """Any mode -> mode "L", in which ink and paper differ; what is transparent differs from what is drawn on it."""
    image = eight_bits(image)
    try:
        if image.has_transparency_data:
            return _on_paper(image.convert("RGBA"))
        if image.mode == "RGB":
            return _most_telling(image)
        return image.convert("L")
    except ValueError as error:
        raise InvalidImage(f"expected grey or colour, found the mode {image.mode}: {error}") from error


def _on_paper(layered: Image.Image) -> Image.Image:
    """Mode "RGBA" -> mode "L", on white paper, or on black where light ink would be lost on white."""
    alpha, grey = layered.getchannel("A"), layered.convert("L")
    sides = (_SAMPLE_SIDE, _SAMPLE_SIDE)
    levels, weights = (np.asarray(each.resize(sides, Image.Resampling.BOX), dtype=float) for each in (grey, alpha))
    light = (levels * weights).sum() > 128 * weights.sum()
    paper = Image.new("L", layered.size, 0 if light else 255)
    paper.paste(grey, mask=alpha)
    return paper


def _most_telling(colours: Image.Image) -> Image.Image:
    """Mode "RGB" -> mode "L": the brightness, or one colour where ink and paper are about equally bright."""
    sample = colours.resize((_SAMPLE_SIDE, _SAMPLE_SIDE), Image.Resampling.NEAREST)
    brightness = float(np.asarray(sample.convert("L"), dtype=np.float32).std())
    spreads = np.asarray(sample, dtype=np.float32).std(axis=(0, 1))  # (3,)
    if spreads.max() > _TELLING * brightness:
        return colours.getchannel(int(spreads.argmax()))
    return colours.convert("L")


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
    """The mean width in pixels of the strokes in (h, w): twice their area by their outline.

    An outline in any direction is pi/4 of the edges between pixels that it takes (Crofton's formula).
    """
    mask = np.pad(ink > 0.5 * ink.max(), 1)
    edges = np.count_nonzero(np.diff(mask, axis=0)) + np.count_nonzero(np.diff(mask, axis=1))
    return 2 * np.count_nonzero(mask) / (np.pi / 4 * edges)


def _widened(picture: Image.Image, missing: float, box: int) -> Image.Image:
    """Strokes of a mode "F" picture wider by `missing` of its pixels, at some times the size of the box."""
    drawn = picture.resize(scaled_to(picture.size, _DRAWN_SIDE * box), Image.Resampling.BOX)
    reach = round(missing / 2 * max(drawn.size) / max(picture.size))
    wide = Image.new("F", (drawn.width + 2 * reach, drawn.height + 2 * reach))
    wide.paste(drawn, (reach, reach))
    return wide.filter(ImageFilter.MaxFilter(2 * reach + 1))


def _centre(ink: Pixels, size: tuple[int, int]) -> NDArray[np.uint8]:
    """Ink (h, w) -> uint8 of the field's size, its centre of mass at the centre as far as all of it stays inside."""
    field = np.zeros(size, dtype=np.uint8)
    corner = []
    for axis, (extent, inner) in enumerate(zip(size, ink.shape, strict=True)):
        mass = ink.sum(axis=1 - axis)
        centre = float(mass @ np.arange(inner) / mass.sum())
        corner.append(min(max(round(extent // 2 - centre), 0), extent - inner))
    top, left = corner
    field[top : top + ink.shape[0], left : left + ink.shape[1]] = np.rint(ink)
    return field
