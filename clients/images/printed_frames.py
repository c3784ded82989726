"""Finds and erases the frames that forms print around digits.

In: the mask of a picture's strokes. Out: the mask of the frames' lines, and the picture without the frames. A connected
component is a frame if it encloses other ink, or if it has four straight sides around a digit or around nothing. No
handwritten digit is such a component.
"""

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFilter

from clients.images.connected_components import Mask, bounds, label

_ENCLOSED = 0.35  # of a frame's height or width; smaller ink inside is the dot of a zero
_STRAIGHT = 0.8  # of a side's length must lie near the edge of the part, a connected component
_NEAR = 0.12  # of the part's longer side; a line so near the edge is a side, as a frame may be turned a little
_THICK = 0.2  # of the part's shorter side; a thicker line is a stroke
_THIN = 0.09  # of the part's longer side; the lines of an empty frame are thinner
_STRAY = 0.05  # of the pixels of an empty frame's lines; the part has fewer pixels that are not lines
CERTAIN = 60.0  # grey levels; ink of less contrast may be the fill of a zero that looks like a frame
_MARGIN = 1 / 170  # of the picture's longer side; the soft edge of a frame's lines, which is erased too
_BORDER = 40.0  # grey levels between paper and the lines at a picture's border
_BORDER_SHARE = 0.12  # of a picture's shorter side; lines at the border are thinner

TAKEN_AWAY = "a frame around the ink is taken away"
TAKEN_FOR_INK = "a frame around the ink may be taken for ink; crop the picture inside the frame"


def find_frames(strokes: Mask) -> tuple[Mask, bool] | None:
    """Strokes (h, w) -> the mask (h, w) of all frames' lines, and whether a frame holds ink of a digit's size.

    None: there is no frame.
    """
    parts, count = label(strokes)
    lines, is_certain = np.zeros_like(strokes), False
    for number in range(1, count + 1):
        part = parts == number
        box = bounds(part)
        if min(part[box].shape) < 8:  # pixels
            continue
        if _encloses(part[box], strokes[box]):
            lines |= part
            is_certain = True
        elif (sides := _sides(part[box])) is not None:
            inside = part[box] & ~sides
            holds_digit = _is_large(inside, part[box].shape)
            is_empty = _is_thin(sides) and np.count_nonzero(inside) < _STRAY * np.count_nonzero(sides)
            if holds_digit or is_empty:
                lines[box] |= sides
                is_certain |= holds_digit
    return (lines, is_certain) if lines.any() else None


def _encloses(part: Mask, strokes: Mask) -> bool:
    """Whether a hole of the part holds other ink of a digit's size."""
    closed = np.asarray(Image.fromarray(np.pad(part, 2)).convert("L").filter(ImageFilter.MaxFilter(3))) > 0
    outside, _ = label(~closed)
    inner = (~closed & (outside != outside[0, 0]))[2:-2, 2:-2]
    return _is_large(inner & strokes & ~part, part.shape)


def _is_large(ink: Mask, shape: tuple[int, ...]) -> bool:
    """Whether the largest part of ink (h, w) has a digit's size inside a frame of this shape, (height, width)."""
    parts, count = label(ink)
    if not count:
        return False
    height, width = (side.stop - side.start for side in bounds(parts == np.bincount(parts[ink]).argmax()))
    return bool(max(height / shape[0], width / shape[1]) >= _ENCLOSED and height >= _ENCLOSED * width)


def _sides(part: Mask) -> Mask | None:
    """The mask (h, w) of a part's four straight sides; None if it has fewer sides or if they are too thick."""
    reach = max(2, round(_NEAR * max(part.shape)))
    lines = np.zeros_like(part)
    for turns in range(4):
        side, line = np.rot90(part, turns), np.rot90(lines, turns)  # views; the side to examine is on top
        first = side.argmax(axis=0)  # the first filled row of each column
        straight = side.any(axis=0) & (first <= reach)
        if straight.mean() < _STRAIGHT:
            return None
        # In each column, the end of the filled rows from `first`.
        ends = np.where(side, False, np.arange(len(side))[:, None] > first).argmax(axis=0)
        ends[ends == 0] = len(side)
        width = int(np.median((ends - first)[straight]))
        if width > _THICK * min(part.shape):
            return None
        last = np.minimum(ends, first + width + 2)
        rows = np.arange(len(side))[:, None]
        line |= straight & (rows >= first) & (rows < last)
    return lines


def _is_thin(lines: Mask) -> bool:
    """Whether a rectangle's lines are thin. The width of a line is its area over its length."""
    return bool(np.count_nonzero(lines) < _THIN * max(lines.shape) * 2 * sum(lines.shape))


def erase_lines(grey: Image.Image, lines: Mask, paper: NDArray[np.float32]) -> Image.Image:
    """A copy of a picture of mode "L" with paper in place of the lines.

    lines: mask (h, w); paper: grey levels (h, w). Both may be smaller than the picture, and are enlarged.
    """
    margin = max(1, round(max(lines.shape) * _MARGIN))
    wide = Image.fromarray(lines).convert("L").filter(ImageFilter.MaxFilter(2 * margin + 1))
    level = Image.fromarray(np.clip(paper, 0, 255).astype(np.uint8)).resize(grey.size)
    cleaned = grey.copy()
    cleaned.paste(level, mask=wide.resize(grey.size, Image.Resampling.NEAREST))
    return cleaned


def without_border(grey: Image.Image) -> Image.Image:
    """Crops a picture of mode "L" that has lines along all four borders, as if cut out of a form.

    Returns `grey` itself if a border has no line.
    """
    levels = np.asarray(grey, dtype=np.float32)
    paper, limit = float(np.median(levels)), max(1, int(_BORDER_SHARE * min(levels.shape)))
    if min(levels.shape) < 16:  # pixels
        return grey
    depths = []
    for turns in range(4):
        is_line = np.abs(np.median(np.rot90(levels, turns)[: limit + 1], axis=1) - paper) > _BORDER  # by row
        if not is_line[0] or is_line.all():
            return grey
        depths.append(int(is_line.argmin()) + 1)
    top, right, bottom, left = depths  # np.rot90 brings the right side to the top
    return grey.crop((left, top, grey.width - right, grey.height - bottom))
