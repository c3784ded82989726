"""Reads picture files; training and clients share this code, so both see the same pixels.

In: an untrusted path or open binary file. Out: a Pillow picture, then the pixels that a model of photos takes; or
UnreadablePicture.

Decoding a colour picture of MOST_PIXELS takes 360 MB for PNG or TIFF, 1.4 GB for WebP. Programs that read strangers'
pictures set the lower limit `most_pixels`.
"""

import os
from collections.abc import Callable
from typing import BinaryIO, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from common import picture_formats
from common.picture_formats import DECODED_SIDE, FORMATS, UnreadablePicture

DRAFTED = "drafted"  # key of `Image.info`: whether the picture was decoded at a reduced size
_GREY_MODES = frozenset(("1", "L", "LA", "La", "I", "F"))

Source = str | os.PathLike[str] | BinaryIO


def read_picture(
    source: Source,
    noted: Callable[[str], object] = lambda note: None,
    most_pixels: int | None = None,
    full_size: bool = False,
) -> Image.Image:
    """Returns the first page or frame, turned upright by its EXIF data.

    noted:       is called with a text if the file has several pages or frames.
    most_pixels: limit of the decoded pixels; a larger JPEG passes if it is decoded at a reduced size.
    full_size:   decode a JPEG at its full size, too.
    Raises UnreadablePicture for a missing, empty or damaged file, a format not in FORMATS, too many pixels, and another
    type of `source`; MemoryError if the process has too little memory.
    """
    name = str(getattr(source, "name", "image")) if hasattr(source, "read") else _path(source)
    try:
        with Image.open(source, formats=_decodable()) as picture:
            if picture.width * picture.height > picture_formats.MOST_PIXELS:
                raise _too_large(name, f"{picture.width}x{picture.height}")
            if _has_more_pages(picture):
                noted("several pages or frames; the first is read")
            _draft(name, picture, most_pixels, full_size)
            picture.load()
            ImageOps.exif_transpose(picture, in_place=True)  # a copy would lose its file name
            return picture
    except (UnreadablePicture, MemoryError):
        raise
    except (Image.DecompressionBombWarning, Image.DecompressionBombError) as error:
        raise _too_large(name, "more") from error
    except Exception as error:  # Pillow's decoders raise many types on hostile bytes
        raise UnreadablePicture(f"{name}: expected a picture, found {_fault(source, error)}") from error


def _too_large(name: str, found: str) -> UnreadablePicture:
    return UnreadablePicture(f"{name}: expected at most {picture_formats.MOST_PIXELS} pixels, found {found}")


def _draft(name: str, picture: Image.Image, most_pixels: int | None, full_size: bool) -> None:
    """Sets a JPEG to be decoded at a reduced size unless `full_size`. Raises UnreadablePicture above `most_pixels`."""
    size = picture.size
    if not full_size:
        picture.draft(None, (DECODED_SIDE, DECODED_SIDE))
    picture.info[DRAFTED] = picture.size != size
    # libjpeg holds a progressive file at its full size in memory.
    decoded = size if picture.info.get("progressive") else picture.size
    if most_pixels is not None and decoded[0] * decoded[1] > most_pixels:
        expected = f"at most {most_pixels / 1e6:g} megapixels"
        raise UnreadablePicture(f"{name}: expected {expected}, found {size[0]}x{size[1]} pixels")


def _has_more_pages(picture: Image.Image) -> bool:
    """Whether the file has a second page or frame. Pillow's `n_frames` would read the complete file."""
    if picture.format == "MPO":  # a phone's JPEG: its second picture is a preview
        return False
    try:
        picture.seek(1)
    except EOFError:
        return False
    picture.seek(0)
    return True


def _path(source: object) -> str:
    if not isinstance(source, str | os.PathLike):
        raise UnreadablePicture(f"expected the path of an image or an open binary file, found {type(source).__name__}")
    return os.fsdecode(source)


def _fault(source: Source, error: Exception) -> str:
    if isinstance(error, UnidentifiedImageError):
        return "an empty file" if _is_empty(source) else "no format that is read here"
    damage = " ".join(str(error).split()) or type(error).__name__
    return getattr(error, "strerror", None) or f"a damaged file: {damage}"


def _is_empty(source: Source) -> bool:
    if isinstance(source, str | os.PathLike):
        return os.stat(source).st_size == 0  # noqa: PTH116 (a path may be bytes)
    return source.seek(0, os.SEEK_END) == 0


def _decodable() -> list[str]:
    Image.init()  # registers all decoders
    return [name for name in FORMATS if name in Image.OPEN]


def is_grey(picture: Image.Image) -> bool:
    return picture.mode in _GREY_MODES or picture.mode.startswith("I;16")


def photo_pixels(picture: Image.Image, shape: tuple[int, int, int]) -> NDArray[np.uint8]:
    """Crops the picture's middle to the model's aspect ratio and resizes it with antialiasing.

    Levels are not inverted: Fashion-MNIST's garments are light on black, so pictures for its models must be, too. A
    picture of the model's size stays unchanged.

    picture: upright, any mode and size; transparent pixels become white.
    shape:   (channels, height, width); 1 channel is grey, 3 are RGB.
    Returns uint8 (channels, height, width). Raises UnreadablePicture for another number of channels and for a mode that
    Pillow does not convert.
    """
    channels, height, width = shape
    if channels not in (1, 3):
        raise UnreadablePicture(f"image: expected a model of 1 or 3 channels, found {channels}")
    cropped = ImageOps.fit(converted(picture, "L" if channels == 1 else "RGB"), (width, height))
    pixels = np.asarray(cropped).reshape(height, width, channels)
    return np.ascontiguousarray(pixels.transpose(2, 0, 1))  # (C, H, W)


def converted(picture: Image.Image, mode: Literal["L", "RGB"], on_white: bool = True) -> Image.Image:
    """Converts any mode to grey ("L") or colour. `on_white`: transparent pixels become white, else keep their colour.

    Raises UnreadablePicture for a mode that Pillow does not convert.
    """
    try:
        picture = convertible_mode(picture)
        if on_white and picture.has_transparency_data:
            picture = Image.alpha_composite(Image.new("RGBA", picture.size, "white"), picture.convert("RGBA"))
        return picture.convert(mode)
    except ValueError as error:
        name = getattr(picture, "filename", "") or "image"
        found = f"the mode {picture.mode}: {error}"
        raise UnreadablePicture(f"{name}: expected grey or colour, found {found}") from error


def convertible_mode(picture: Image.Image) -> Image.Image:
    """Converts modes that Pillow cannot turn into both grey and colour: "I;16", "I", "F" to "L", "LAB" to "RGB"."""
    if picture.mode == "LAB":
        return picture.convert("RGB")
    if picture.mode.startswith("I;16"):
        deep = np.asarray(picture)
        spare_bits = max(0, int(deep.max()).bit_length() - 8)
        spare_bits += spare_bits % 2  # the depths of cameras and scanners are 10, 12, 14 and 16 bits
        return Image.fromarray((deep >> spare_bits).astype(np.uint8))
    if picture.mode in ("I", "F"):  # these modes define no range of levels: scale by the picture's range
        with np.errstate(invalid="ignore"):  # numpy warns of NaN
            values = np.array(picture, dtype=np.float32)
        np.nan_to_num(values, copy=False)
        largest = max(float(values.max()), -float(values.min()))
        values /= largest or 1  # before the subtraction, which may overflow float32
        values -= values.min()
        values *= 255 / (float(values.max()) or 1)
        return Image.fromarray(values.astype(np.uint8))
    return picture
