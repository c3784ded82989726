"""Decodes untrusted files to pictures, in bounded memory.

In: a path or an open binary file. Out: a Pillow picture, or InvalidImage.

The limit is `PIL.Image.MAX_IMAGE_PIXELS`, 89 million by default: 360 MB for PNG and TIFF in colour, 1.4 GB for WebP.
A reader of strangers' pictures sets a lower limit, `most_pixels`.
"""

import os
from collections.abc import Callable
from typing import BinaryIO

from PIL import Image, ImageOps, UnidentifiedImageError

from clients.errors import InvalidImage
from common.decoding import DECODED_SIDE, FORMATS

DRAFTED = "drafted"  # key in a picture's info: whether it was decoded at a reduced size


def read_image(
    source: str | os.PathLike[str] | BinaryIO,
    noted: Callable[[str], object] = lambda what: None,
    most_pixels: int | None = None,
    whole: bool = False,
) -> Image.Image:
    """Returns the first page or frame, upright by its EXIF data; calls `noted` with a text if there are several.

    most_pixels: limit of the pixels in memory; a larger JPEG passes if it is decoded at a reduced size.
    whole: decodes a JPEG at its full size.
    Raises InvalidImage for a missing, empty or damaged file, a format not in FORMATS, too many pixels, and another
    type of `source`; MemoryError where the process has a limit.
    """
    name = str(getattr(source, "name", "image")) if hasattr(source, "read") else _path(source)
    try:
        with Image.open(source, formats=_decodable()) as image:
            limit = Image.MAX_IMAGE_PIXELS
            if limit is not None and image.width * image.height > limit:
                raise InvalidImage(f"{name}: expected at most {limit} pixels, found {image.width}x{image.height}")
            if _has_more_pages(image):
                noted("several pages or frames; the first is read")
            size = image.size
            if not whole:
                image.draft(None, (DECODED_SIDE, DECODED_SIDE))
            image.info[DRAFTED] = image.size != size
            held = size if image.info.get("progressive") else image.size  # libjpeg holds all of a progressive file
            if most_pixels is not None and held[0] * held[1] > most_pixels:
                expected = f"at most {most_pixels / 1e6:g} megapixels"
                raise InvalidImage(f"{name}: expected {expected}, found {size[0]}x{size[1]} pixels")
            image.load()
            ImageOps.exif_transpose(image, in_place=True)  # a copy would lose its file name
            return image
    except (InvalidImage, MemoryError):
        raise
    except FileNotFoundError as error:
        raise InvalidImage(f"{name}: expected an image, found no such file") from error
    except (Image.DecompressionBombWarning, Image.DecompressionBombError) as error:
        raise InvalidImage(f"{name}: expected at most {Image.MAX_IMAGE_PIXELS} pixels: {error}") from error
    except UnidentifiedImageError as error:
        what = "an empty file" if _is_empty(source) else "no format that Pillow reads"
        raise InvalidImage(f"{name}: expected an image, found {what}") from error
    except Exception as error:  # Pillow's decoders raise many types on hostile bytes
        damage = " ".join(str(error).split()) or type(error).__name__
        found = getattr(error, "strerror", None) or f"a damaged file: {damage}"
        raise InvalidImage(f"{name}: expected an image, found {found}") from error


def _has_more_pages(image: Image.Image) -> bool:
    """Whether there is a second page or frame; `n_frames` would read the complete file."""
    if image.format == "MPO":  # a phone's JPEG, whose second picture is a preview
        return False
    try:
        image.seek(1)
    except EOFError:
        return False
    image.seek(0)
    return True


def _path(source: object) -> str:
    if not isinstance(source, str | os.PathLike):
        raise InvalidImage(f"expected the path of an image or an open binary file, found {type(source).__name__}")
    return os.fsdecode(source)


def _is_empty(source: str | os.PathLike[str] | BinaryIO) -> bool:
    if isinstance(source, str | os.PathLike):
        return os.stat(source).st_size == 0  # noqa: PTH116 (a path may be bytes)
    return source.seek(0, os.SEEK_END) == 0


def _decodable() -> list[str]:
    Image.init()  # registers all decoders
    return [name for name in FORMATS if name in Image.OPEN]
