"""Resizes and crops a picture as the processor of a model from elsewhere does.

In: a picture and a `Framing`, which the exporter has read from a processor of transformers or timm. Out: uint8 pixels,
at most 1 grey level from the processor's. Sources: torchvision's Resize and CenterCrop, timm's ResizeKeepRatio.
"""

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from clients.errors import InvalidImage
from clients.images.decode import converted
from common.preprocessing_settings import Framing

_MOST_PIXELS = 1 << 24  # of a resized image; a long thin picture would fill memory


def resize_and_crop(image: Image.Image, shape: tuple[int, int, int], framing: Framing) -> NDArray[np.uint8]:
    """Upright picture, any mode and size -> uint8 `shape` (C, H, W).

    Transparent pixels become white as in transformers; timm drops the transparency.

    Raises InvalidImage for a mode that Pillow does not convert, and for a picture that is too thin or too small.
    """
    channels, height, width = shape
    name = getattr(image, "filename", "") or "image"
    coloured = converted(image, "L" if channels == 1 else "RGB", on_white=framing.like == "transformers")
    rows, columns = _resized_size(coloured.height, coloured.width, framing)
    if max(rows, coloured.height) * columns > _MOST_PIXELS:
        raise InvalidImage(f"{name}: expected a picture that is less thin, found {image.width}x{image.height} pixels")
    coloured = _resized(coloured, columns, rows, framing)
    if framing.fill:
        coloured = _padded(coloured, height, width, framing.fill)
    if coloured.height < height or coloured.width < width:
        raise InvalidImage(f"{name}: expected at least {width}x{height} pixels, found {image.width}x{image.height}")
    top, left = _start(coloured.height - height, framing), _start(coloured.width - width, framing)
    pixels = np.asarray(coloured.crop((left, top, left + width, top + height))).reshape(height, width, channels)
    return np.ascontiguousarray(pixels.transpose(2, 0, 1))  # (C, H, W)


def _resized_size(rows: int, columns: int, framing: Framing) -> tuple[int, int]:
    """The height and width after resizing, of a picture of `rows` and `columns` pixels."""
    height, width = framing.size
    if framing.fit == "none":
        return rows, columns
    if framing.fit == "squash":
        return height, width
    if framing.fit == "short side":
        return (height, int(height * columns / rows)) if rows <= columns else (int(height * rows / columns), height)
    ratios = rows / height, columns / width
    ratio = min(ratios) if framing.fit == "cover" else max(ratios)
    return max(1, round(rows / ratio)), max(1, round(columns / ratio))


def _resized(image: Image.Image, columns: int, rows: int, framing: Framing) -> Image.Image:
    """Resizes in the library's order: transformers (torchvision) resizes the width first; for timm, Pillow decides.

    Levels are rounded to bytes after the first pass. If one side grows and the other shrinks, the order changes levels
    by up to 11.
    """
    resample = Image.Resampling[framing.resample.upper()]
    if framing.like == "transformers" and columns != image.width:
        image = image.resize((columns, image.height), resample)
    return image.resize((columns, rows), resample) if (columns, rows) != image.size else image


def _padded(image: Image.Image, height: int, width: int, fill: tuple[int, ...]) -> Image.Image:
    """Pads a smaller picture equally on all sides; an odd row is added below, an odd column at the right."""
    across, down = max(0, width - image.width), max(0, height - image.height)
    colour = fill[0] if image.mode == "L" else (fill[0], fill[len(fill) // 2], fill[-1])
    return ImageOps.expand(image, (across // 2, down // 2, across - across // 2, down - down // 2), colour)


def _start(spare: int, framing: Framing) -> int:
    """The first row or column of the crop, by the number of rows or columns to remove.

    timm rounds half a pixel to the even number.
    """
    return spare // 2 if framing.like == "transformers" else round(spare / 2)
