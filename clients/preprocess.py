"""Pixels to tensor: any picture of one digit in, the uint8 image that the model was trained on out.

MNIST was made so (LeCun, Cortes, Burges, http://yann.lecun.com/exdb/mnist/): the digit is scaled to fit a 20x20 box
with its aspect ratio kept, antialiasing makes it grey, and it is moved in a 28x28 field until its centre of mass is at
the field's centre. In the published files that centre is pixel (14, 14), counted from 0, and ink is 255 on 0.
A picture that is so already comes out nearly unchanged.

    read_image      file -> upright picture        decoding alone, with bounded memory
    to_model_input  picture -> uint8 (1, 28, 28)   grey, paper removed, cropped, scaled, centred

The errors of a client start here too, since this module is the lowest of clients/ and knows no server.
"""

import os
import warnings
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFilter, ImageOps, UnidentifiedImageError

Pixels = NDArray[np.float32]
Box = tuple[int, int, int, int]  # left, top, right, bottom, the last two exclusive

_BOX_SHARE = 20 / 28  # of the field is what the digit may fill
_WORKING_SIDE = 512  # pixels in which ink is looked for: a few milliseconds whatever the picture's size
_BLURRED_FROM = 256  # pixels a side; in smaller pictures a blur would eat the strokes
_DECODED_SIDE = 1024  # a JPEG is decoded no larger than needed for this, where its format allows
_LEAST_CONTRAST = 20.0  # grey levels of 255 between ink and paper
_NOISE_MARGIN = 6.0  # standard deviations of the paper's noise; a megapixel of Gaussian noise stays under 5.5
_FAINTEST = 0.1  # of the darkest ink; fainter alone, by compression or a shadow, does not widen the box
_LEAST_SIDE = 6  # pixels of the ink's longer side; smaller is a speck, and no digit could be read in it
_LEAST_COVER = 0.02  # of its bounding box is what a digit's strokes cover; scattered specks cover less
_MARGIN = 0.5  # of the ink's longer side is the paper kept around it when looking closer


class ClientError(Exception):
    """What every error of this package is; its text is one line that names what was expected and what was found."""


class InvalidImage(ClientError):
    """The file or array is not an image that can be classified."""


class BlankImage(InvalidImage):
    """The picture is read, and there is no ink on it: one colour, or noise alone."""


def read_image(source: str | os.PathLike[str] | BinaryIO) -> Image.Image:
    """Decode a picture from a path or an open binary file, in any format that Pillow reads.

    Returns the first frame, fully decoded and turned upright as its EXIF data say. A large JPEG may come at a half, a
    quarter or an eighth of its size.
    Raises InvalidImage when there is no such file, when it is no image, is cut off, or decodes to more pixels than
    Pillow's limit against decompression bombs (`PIL.Image.MAX_IMAGE_PIXELS`).
    """
    name = getattr(source, "name", "image") if hasattr(source, "read") else os.fspath(source)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # odd metadata is no reason to refuse a picture
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(source) as image:
                if image.format == "EPS":  # a program, which Pillow would have Ghostscript run
                    raise InvalidImage(f"{name}: expected a picture, found PostScript, which is a program")
                image.draft("L", (_DECODED_SIDE, _DECODED_SIDE))
                image.load()
                ImageOps.exif_transpose(image, in_place=True)  # in place, for a copy forgets its file name
                return image
    except InvalidImage:
        raise
    except FileNotFoundError as error:
        raise InvalidImage(f"{name}: expected an image, found no such file") from error
    except (Image.DecompressionBombWarning, Image.DecompressionBombError) as error:
        raise InvalidImage(f"{name}: expected at most {Image.MAX_IMAGE_PIXELS} pixels: {error}") from error
    except UnidentifiedImageError as error:
        raise InvalidImage(f"{name}: expected an image, found no format that Pillow reads") from error
    except Exception as error:  # on hostile bytes Pillow's decoders raise whatever they stumble over
        found = " ".join(str(error).split()) or type(error).__name__
        raise InvalidImage(f"{name}: expected an image, found one that does not decode: {found}") from error


def to_model_input(image: Image.Image, size: tuple[int, int] = (28, 28)) -> NDArray[np.uint8]:
    """Make of a picture with one digit what the model was trained on.

    image: upright, any mode and size, dark ink on light paper or light on dark; transparency shows white.
    size:  height and width of the field, in pixels.
    Returns uint8 (1, height, width), 0 = background, 255 = ink.
    Raises BlankImage when there is no ink, InvalidImage when the colour space has no grey (Lab).
    """
    try:
        ink = _find_ink(_to_grey(image))
    except InvalidImage as error:
        raise type(error)(f"{getattr(image, 'filename', '') or 'image'}: {error}") from error
    return _centre(_fit(ink, size), size)[np.newaxis]


def _to_grey(image: Image.Image) -> Image.Image:
    """Any mode -> mode "L", the picture lying on white paper where it is transparent."""
    if image.mode.startswith("I;16"):
        return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if image.mode in ("I", "F"):  # the picture alone tells what black and white are
        with np.errstate(invalid="ignore"):  # of some NaN the conversion itself complains
            values = np.array(image, dtype=np.float64)
        np.nan_to_num(values, copy=False)
        values -= values.min()
        values *= 255 / (values.max() or 1)
        return Image.fromarray(values.astype(np.uint8))
    try:
        if not image.has_transparency_data:
            return image.convert("L")
        layered = image.convert("RGBA")
        paper = Image.new("L", image.size, 255)
        paper.paste(layered.convert("L"), mask=layered.getchannel("A"))
        return paper
    except ValueError as error:
        raise InvalidImage(f"expected grey or colour, found the mode {image.mode}: {error}") from error


def _find_ink(grey: Image.Image) -> Pixels:
    """Mode "L" -> float32 (h, w), the bounding box of the ink, 0 = paper.

    What is found is cut out with the paper around it and searched again until it fills the view, so that a small
    digit on a large sheet keeps its detail and is judged by the paper it stands on.
    """
    while True:
        view = grey
        if max(grey.size) > _WORKING_SIDE:
            view = grey.resize(_scaled_to(grey.size, _WORKING_SIDE), Image.Resampling.BOX)
        if max(view.size) >= _BLURRED_FROM:
            view = view.filter(ImageFilter.BoxBlur(1))
        ink, box = _separate(np.asarray(view, dtype=np.float32))
        closer = _surroundings(box, max(grey.size) / max(view.size), grey.size)
        area = (closer[2] - closer[0]) * (closer[3] - closer[1])
        if area > 0.8 * grey.width * grey.height:
            left, top, right, bottom = box
            return ink[top:bottom, left:right]
        grey = grey.crop(closer)


def _surroundings(box: Box, scale: float, size: tuple[int, int]) -> Box:
    """The box with its margin of paper, times `scale`, as far as a picture of this (width, height) reaches."""
    left, top, right, bottom = box
    margin = _MARGIN * max(right - left, bottom - top)
    return (
        max(0, int((left - margin) * scale)),
        max(0, int((top - margin) * scale)),
        min(size[0], int((right + margin) * scale) + 1),
        min(size[1], int((bottom + margin) * scale) + 1),
    )


def _separate(pixels: Pixels) -> tuple[Pixels, Box]:
    """Grey levels (h, w) -> how far each is from the paper towards the ink, 0 on paper; and the ink's bounding box."""
    border = np.ones(pixels.shape, dtype=bool)
    border[1:-1, 1:-1] = False
    away = pixels - _fit_plane(pixels, border)
    noise = 1.4826 * float(np.median(np.abs(away[border])))  # the standard deviation, as the median sees it
    least = max(_LEAST_CONTRAST, _NOISE_MARGIN * noise)

    # The ink is on the side that strays far from the paper over the larger area.
    brighter, darker = (float(np.square(side[side > least]).sum()) for side in (away, -away))
    ink = np.clip(away if brighter > darker else -away, 0, None)
    contrast = float(ink.max())
    if contrast < least:
        raise BlankImage(f"no ink found: contrast {contrast:.0f} of 255 grey levels, expected {least:.0f}")
    box = _bounding_box(ink > max(_FAINTEST * contrast, _NOISE_MARGIN * noise))
    ink[ink < _NOISE_MARGIN / 2 * noise] = 0
    return ink, box


def _fit_plane(pixels: Pixels, border: NDArray[np.bool_]) -> Pixels:
    """The paper's grey level at every pixel (h, w): a plane, for paper is seldom lit evenly.

    Least trimmed squares over the border: a fit to the half that agrees best, repeated, so that ink which runs into
    the border does not tilt the plane (Rousseeuw, Least Median of Squares Regression, 1984).
    """
    height, width = pixels.shape
    y, x = np.mgrid[-1 : 1 : height * 1j, -1 : 1 : width * 1j]
    terms = np.stack([np.ones_like(x), x, y], axis=-1)  # (h, w, 3)
    samples, levels = terms[border], pixels[border]
    plane = np.array([np.median(levels), 0.0, 0.0])
    for _ in range(5):
        away = np.abs(levels - samples @ plane)
        agreeing = away <= np.median(away)
        plane = np.linalg.lstsq(samples[agreeing], levels[agreeing], rcond=None)[0]
    return np.asarray(terms @ plane, dtype=np.float32)


def _bounding_box(stroke: NDArray[np.bool_]) -> Box:
    """Mask (h, w) -> the box around what is true, when that can be a digit."""
    rows, columns = np.flatnonzero(stroke.any(axis=1)), np.flatnonzero(stroke.any(axis=0))
    left, top, right, bottom = int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1
    width, height = right - left, bottom - top
    cover = np.count_nonzero(stroke) / (width * height)
    if max(width, height) < _LEAST_SIDE or cover < _LEAST_COVER:
        raise BlankImage(f"no ink found: only specks, {cover:.1%} of {width}x{height} pixels")
    return left, top, right, bottom


def _scaled_to(size: tuple[int, int], longer: int) -> tuple[int, int]:
    """Width and height with the longer side as given, the aspect ratio kept, and no side empty."""
    width, height = (max(1, round(side * longer / max(size))) for side in size)
    return width, height


def _fit(ink: Pixels, size: tuple[int, int]) -> Pixels:
    """Ink (h, w) -> at most 20x20 of a 28x28 field, values 0 to 255."""
    box = round(min(size) * _BOX_SHARE)
    picture = Image.fromarray(ink)
    scaled = np.asarray(picture.resize(_scaled_to(picture.size, box), Image.Resampling.HAMMING))
    return np.asarray(np.clip(scaled * (255 / scaled.max()), 0, 255), dtype=np.float32)


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
