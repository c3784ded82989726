"""Finds and erases printed frames around digits, as forms have them.

In: the mask of a picture's strokes. Out: the pixels of frames, and the picture without them. A frame encloses other
ink, or has four straight sides with ink between them: no handwritten digit has either.
"""

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFilter

from clients.images.connected_components import Mask, label

_ENCLOSED = 0.35  # of a frame's height or width; smaller ink inside is the dot of a zero
_STRAIGHT = 0.8  # of a side's length must lie near the part's edge
_NEAR = 0.12  # of the part's longer side: so far from its edge, as a frame may be turned a little
_THICK = 0.2  # of the part's shorter side; a thicker line is a stroke
_THIN = 0.09  # of the part's longer side; the lines of an empty frame are thinner
_STRAY = 0.05  # of the pixels of an empty frame's lines; the part has fewer pixels beside them
CERTAIN = 60.0  # grey levels; ink inside has more contrast, else the frame may be a zero and the ink its fill
_MARGIN = 1 / 170  # of the picture's longer side, erased beside a frame's lines: their soft edge
_BORDER = 40.0  # grey levels between paper and the lines at a picture's border
_BORDER_SHARE = 0.12  # of a picture's side that such lines may take

TAKEN_AWAY = "a frame around the ink is taken away"
TAKEN_FOR_INK = "a frame around the ink may be taken for ink; crop the picture inside the frame"


def find_frames(strokes: Mask) -> tuple[Mask, bool] | None:
    """Strokes (h, w) -> the lines (h, w) of all frames, and whether a frame holds ink of a digit's size; or None."""
    parts, count = label(strokes)
    lines, is_certain = np.zeros_like(strokes), False
    for number in range(1, count + 1):
        part = parts == number
        rows, columns = (np.flatnonzero(part.any(axis=axis)) for axis in (1, 0))
        box = np.s_[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
        if min(part[box].shape) < 8:  # pixels
            continue
        if _encloses(part[box], strokes[box]):
            lines |= part
            is_certain = True
        elif (sides := _sides(part[box])) is not None:
            rest = part[box] & ~sides
            holds_digit = _is_large(rest, part[box].shape)
            is_bare = _is_thin(sides) and np.count_nonzero(rest) < _STRAY * np.count_nonzero(sides)
            if holds_digit or is_bare:
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
    """Whether ink (h, w) has one part of a digit's size inside a frame of this shape."""
    parts, count = label(ink)
    if not count:
        return False
    largest = parts == np.bincount(parts[ink]).argmax()
    height, width = (np.ptp(np.flatnonzero(largest.any(axis=axis))) + 1 for axis in (1, 0))
    return bool(max(height / shape[0], width / shape[1]) >= _ENCLOSED and height >= _ENCLOSED * width)


def _sides(part: Mask) -> Mask | None:
    """The mask (h, w) of a part's four straight sides, None if it has fewer or they are too thick."""
    reach = max(2, round(_NEAR * max(part.shape)))
    lines = np.zeros_like(part)
    for turns in range(4):
        side, line = np.rot90(part, turns), np.rot90(lines, turns)  # views, this side on top
        first = side.argmax(axis=0)
        straight = side.any(axis=0) & (first <= reach)
        if straight.mean() < _STRAIGHT:
            return None
        ends = np.where(side, False, np.arange(len(side))[:, None] > first).argmax(axis=0)  # of the run from `first`
        ends[ends == 0] = len(side)
        width = int(np.median((ends - first)[straight]))
        if width > _THICK * min(part.shape):
            return None
        last = np.minimum(ends, first + width + 2)
        place = np.arange(len(side))[:, None]
        line |= straight & (place >= first) & (place < last)
    return lines


def _is_thin(lines: Mask) -> bool:
    """Whether a rectangle's lines are thin; their width is their area over their length."""
    return bool(np.count_nonzero(lines) < _THIN * max(lines.shape) * 2 * sum(lines.shape))


def erased(grey: Image.Image, lines: Mask, paper: NDArray[np.float32]) -> Image.Image:
    """A copy of a picture of mode "L" with paper in place of the lines; `lines` and `paper` (h, w) may be smaller."""
    margin = max(1, round(max(lines.shape) * _MARGIN))
    wide = Image.fromarray(lines).convert("L").filter(ImageFilter.MaxFilter(2 * margin + 1))
    level = Image.fromarray(np.clip(paper, 0, 255).astype(np.uint8)).resize(grey.size)
    cleaned = grey.copy()
    cleaned.paste(level, mask=wide.resize(grey.size, Image.Resampling.NEAREST))
    return cleaned


def without_border(grey: Image.Image) -> Image.Image:
    """Crops a picture of mode "L" that has lines along all four borders, as if cut out of a form; others stay."""
    levels = np.asarray(grey, dtype=np.float32)
    paper, most = float(np.median(levels)), max(1, int(_BORDER_SHARE * min(levels.shape)))
    if min(levels.shape) < 16:  # pixels
        return grey
    taken = []
    for turns in range(4):
        depth = np.abs(np.median(np.rot90(levels, turns)[: most + 1], axis=1) - paper) > _BORDER
        if not depth[0] or depth.all():
            return grey
        taken.append(int(depth.argmin()) + 1)
    top, right, bottom, left = taken  # np.rot90 brings the right side to the top
    return grey.crop((left, top, grey.width - right, grey.height - bottom))
