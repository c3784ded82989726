"""Files to pictures: decoding alone, by any number of threads, with bounded memory, and with nothing but typed errors.

In: a path or an open binary file, from anyone. Out: an upright picture of Pillow's, or InvalidImage in one line.

A picture may have Pillow's limit of pixels against decompression bombs, `PIL.Image.MAX_IMAGE_PIXELS`, 89 million
unless a program sets it. JPEG is decoded at an eighth of its size where it is large; all other formats decode in full.
In bytes a pixel that is 4 for PNG and TIFF in colour, 360 MB at the limit, and 16 for WebP, 1.4 GB.

The errors of a client start here too, since this module is the lowest of clients/ and knows no server.
"""

import os
from typing import BinaryIO

from PIL import Image, ImageOps, UnidentifiedImageError

# What cameras, scanners, telephones and drawing programs write; MPO, a photo with its preview, opens as JPEG. Pillow's
# other decoders are seldom used and so seldom repaired, and one, for PostScript, has Ghostscript run a program.
FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "AVIF")

_DECODED_SIDE = 1024  # a JPEG is decoded no larger than needed for this, where its format allows


class ClientError(Exception):
    """What every error of this package is; its text is one line that names what was expected and what was found."""


class InvalidImage(ClientError):
    """The file or array is not an image that can be classified."""


class BlankImage(InvalidImage):
    """The picture is read, and there is no ink on it: one colour, or noise alone."""


def read_image(source: str | os.PathLike[str] | BinaryIO) -> Image.Image:
    """Decode a picture from a path or an open binary file, in one of FORMATS.

    Returns the first frame, fully decoded and turned upright as its EXIF data say. A large JPEG may come at a half, a
    quarter or an eighth of its size.
    Raises InvalidImage when there is no such file, when it is no image, is cut off, or has more pixels than
    `PIL.Image.MAX_IMAGE_PIXELS`, and when `source` is neither a path nor a binary file.
    """
    name = str(getattr(source, "name", "image")) if hasattr(source, "read") else _path(source)
    try:
        with Image.open(source, formats=_decodable()) as image:
            limit = Image.MAX_IMAGE_PIXELS
            if limit is not None and image.width * image.height > limit:
                raise InvalidImage(f"{name}: expected at most {limit} pixels, found {image.width}x{image.height}")
            image.draft(None, (_DECODED_SIDE, _DECODED_SIDE))
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


def _path(source: object) -> str:
    """A path as text; raises InvalidImage for what is none, as an image file's content."""
    if not isinstance(source, str | os.PathLike):
        raise InvalidImage(f"expected the path of an image or an open binary file, found {type(source).__name__}")
    return os.fsdecode(source)


def _decodable() -> list[str]:
    """Those of FORMATS that this Pillow was built with."""
    Image.init()  # all decoders; returns at once when they are known
    return [name for name in FORMATS if name in Image.OPEN]
