"""Pixels to tensor: any picture of one digit in, the uint8 image that the model was trained on out.

MNIST was made so (LeCun, Cortes, Burges, http://yann.lecun.com/exdb/mnist/): the digit is scaled to fit a 20x20 box
with its aspect ratio kept, antialiasing makes it grey, and it is moved in a 28x28 field until its centre of mass is at
the field's centre. In the published files that centre is pixel (14, 14), counted from 0, and ink is 255 on 0.
A picture that is so already comes out nearly unchanged.

    read_image      file -> upright picture        decoding alone, with bounded memory (clients.decode)
    to_model_input  picture -> uint8 (1, 28, 28)   grey, paper removed (clients.ink), scaled, centred

Those who only prepare pictures find the errors here too.
"""

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFilter

from clients.decode import BlankImage, ClientError, InvalidImage, read_image
from clients.ink import Pixels, find_ink, scaled_to

__all__ = ["BlankImage", "ClientError", "InvalidImage", "read_image", "to_model_input"]

_BOX_SHARE = 20 / 28  # of the field is what the digit may fill
_SAMPLE_SIDE = 128  # pixels by which the colours of a picture are judged
_TELLING = 2.0  # times the spread of brightness is what makes one colour the better picture of the ink
_THINNEST = 1.2  # pixels of a 20x20 box; 99 % of MNIST's digits have wider strokes
_COMMON_WIDTH = 2.0  # pixels of that box, to which thinner strokes are widened
_DRAWN_SIDE = 4  # times the box is the size in which thin strokes are widened


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
    if image.mode.startswith("I;16"):
        deep = np.asarray(image)
        spare_bits = max(0, int(deep.max()).bit_length() - 8)  # many cameras and scanners use 10 to 14 of the 16
        return Image.fromarray((deep >> spare_bits).astype(np.uint8))
    if image.mode in ("I", "F"):  # the picture alone tells what black and white are
        with np.errstate(invalid="ignore"):  # of some NaN the conversion itself complains
            values = np.array(image, dtype=np.float32)
        np.nan_to_num(values, copy=False)
        values /= max(float(values.max()), -float(values.min())) or 1  # first, for the range may be no float32
        values -= values.min()
        values *= 255 / (float(values.max()) or 1)
        return Image.fromarray(values.astype(np.uint8))
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
