"""Resizes and crops a picture as the processor of a foreign model does.

In: a picture and a `Framing`, which the exporter has read from a processor of transformers or timm. Out: uint8 pixels,
within one grey level of that processor's. Sources: torchvision's Resize and CenterCrop, timm's ResizeKeepRatio.
"""

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from clients.errors import InvalidImage
from clients.images.decode import converted
from common.framing import Framing

_MOST_PIXELS = 1 << 24  # of an image between the steps: a long thin picture would fill memory


def framed(image: Image.Image, shape: tuple[int, int, int], framing: Framing) -> NDArray[np.uint8]:
    """Upright picture, any mode and size -> uint8 `shape` (C, H, W).

    As in transformers, transparent pixels become white; as in timm, transparency is dropped.

    Raises InvalidImage for a mode that Pillow does not convert, for too thin a picture, and for too small a picture.
    """
    channels, height, width = shape
    name = getattr(image, "filename", "") or "image"
    coloured = converted(image, "L" if channels == 1 else "RGB", on_white=framing.like == "transformers")
    rows, columns = _resized(coloured.height, coloured.width, framing)
    if max(rows, coloured.height) * columns > _MOST_PIXELS:
        raise InvalidImage(f"{name}: expected a picture that is less thin, found {image.width}x{image.height} pixels")
    coloured = _resampled(coloured, columns, rows, framing)
    if framing.fill:
        coloured = _padded(coloured, height, width, framing.fill)
    if coloured.height < height or coloured.width < width:
        raise InvalidImage(f"{name}: expected at least {width}x{height} pixels, found {image.width}x{image.height}")
    top, left = (_start(found - kept, framing) for found, kept in ((coloured.height, height), (coloured.width, width)))
    pixels = np.asarray(coloured.crop((left, top, left + width, top + height))).reshape(height, width, channels)
    return np.ascontiguousarray(pixels.transpose(2, 0, 1))  # (C, H, W)


def _resized(rows: int, columns: int, framing: Framing) -> tuple[int, int]:
    """The picture's height and width after resizing."""
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


def _resampled(image: Image.Image, columns: int, rows: int, framing: Framing) -> Image.Image:
    """Resizes in the library's order: in transformers (torchvision) columns come first, in timm Pillow decides.

    Levels are rounded to bytes after the first pass, so the order changes up to 11 levels where one side grows and the
    other shrinks.
    """
    resample = Image.Resampling[framing.resample.upper()]
    if framing.like == "transformers" and columns != image.width:
        image = image.resize((columns, image.height), resample)
    return image.resize((columns, rows), resample) if (columns, rows) != image.size else image


def _padded(image: Image.Image, height: int, width: int, fill: tuple[int, ...]) -> Image.Image:
    """Pads a smaller picture on all sides; an odd row or column goes below or to the right."""
    left, top = max(0, width - image.width) // 2, max(0, height - image.height) // 2
    colour = fill[0] if image.mode == "L" else (fill[0], fill[1], fill[2])
    padded = Image.new(image.mode, (max(width, image.width), max(height, image.height)), colour)
    padded.paste(image, (left, top))
    return padded


def _start(spare: int, framing: Framing) -> int:
    """The first row or column that is kept; timm rounds half a pixel to the even number."""
    return spare // 2 if framing.like == "transformers" else round(spare / 2)
