"""Finds the ink of a grey picture, without paper, shadows, ruled lines and specks.

Arrays are float32 (height, width) in grey levels, 0 to 255.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFilter

from clients.errors import BlankImage
from clients.images.connected_components import Mask, label
from clients.images.printed_frames import CERTAIN, TAKEN_AWAY, TAKEN_FOR_INK, erased, find_frames, without_border

Pixels = NDArray[np.float32]
Box = tuple[int, int, int, int]  # left, top, right, bottom, the last two exclusive

MOST_FRAMES = 2  # in a picture, one inside the other
LEAST_CONTRAST = 20.0  # grey levels
FAINT = 0.1  # of the darkest ink; fainter is compression or shadow
LEAST_PART = 0.05  # of the heaviest part's ink; lighter parts are specks

_WORKING_SIDE = 512  # pixels of the searched view
_BLURRED_FROM = 256  # pixels; in smaller pictures blur would erase strokes
_PAPER_SIDE = 32  # pixels of the paper's view; light changes slowly
_PAPER_WINDOW = 25  # of these pixels; so large a window is mostly paper; every second pixel counts: 13 a side, odd
_SHADOW = 2.5  # times darker than most of the paper
_NOISE_MARGIN = 6.0  # standard deviations; a megapixel of Gaussian noise stays under 5.5
_STRONG = 0.4  # of the darkest ink; every stroke reaches it somewhere
_LEAST_SIDE = 6  # pixels of the ink's longer side
_LEAST_COVER = 0.02  # of the bounding box; scattered specks cover less
_MARGIN = 0.5  # of the ink's longer side, kept around it


@dataclass(frozen=True)
class Separated:
    """`ink` (h, w): contrast, 0 = none; `paper` (h, w): levels; `strokes`: mask of kept ink; `box`: around strokes."""

    ink: Pixels
    paper: Pixels
    strokes: Mask
    box: Box

    @property
    def contrast(self) -> float:
        return float(self.ink[self.strokes].max())


def find_ink(grey: Image.Image) -> tuple[Pixels, tuple[str, ...]]:
    """Mode "L" -> the ink in its bounding box (h, w), 0 = paper, without frames; notes. Raises BlankImage."""
    inside = without_border(grey)
    notes = {TAKEN_AWAY: inside is not grey}
    found, view = _closest(inside)
    for _ in range(MOST_FRAMES):
        frames = find_frames(found.strokes)
        if frames is None:
            break
        lines, is_certain = frames
        try:
            inner, closer = _closest(erased(view, lines, found.paper))
        except BlankImage:
            inner = None
        if inner is None or not (is_certain or inner.contrast > CERTAIN):
            notes[TAKEN_FOR_INK] = True
            break
        found, view = inner, closer
        notes[TAKEN_AWAY] = True
    left, top, right, bottom = found.box
    return found.ink[top:bottom, left:right], tuple(note for note, holds in notes.items() if holds)


def _closest(grey: Image.Image) -> tuple[Separated, Image.Image]:
    """Separates the ink; returns it and the part of the picture that was searched last.

    The search closes in until the ink fills the view: a small digit on a large sheet keeps its detail.
    """
    while True:
        view = grey
        if max(grey.size) > _WORKING_SIDE:
            view = grey.resize(scaled_to(grey.size, _WORKING_SIDE), Image.Resampling.BOX)
        if max(view.size) >= _BLURRED_FROM:
            view = view.filter(ImageFilter.BoxBlur(1))
        found = separate(np.asarray(view, dtype=np.float32))
        closer = _surroundings(found.box, max(grey.size) / max(view.size), grey.size)
        area = (closer[2] - closer[0]) * (closer[3] - closer[1])
        if area > 0.8 * grey.width * grey.height:
            return found, grey
        grey = grey.crop(closer)


def separate(pixels: Pixels) -> Separated:
    """Separates ink from paper in grey levels (h, w). Raises BlankImage."""
    paper = estimate_paper(pixels)
    away = pixels - paper
    edge = np.concatenate([away[0], away[-1], away[:, 0], away[:, -1]])  # mostly paper, however large the digit
    away -= np.median(edge)
    noise = 1.4826 * float(np.median(np.abs(edge - np.median(edge))))  # standard deviation by the median
    least = max(LEAST_CONTRAST, _NOISE_MARGIN * noise)

    # The fourth power lets a thin stroke outweigh a wide shadow.
    brighter, darker = (float((side[side > least] ** 4).sum()) for side in (away, -away))
    ink = np.clip(away if brighter > darker else -away * _in_full_light(paper), 0, None)
    contrast = float(ink.max())
    if contrast <= least:
        raise BlankImage(_no_ink(contrast, noise))
    ink[ink < _NOISE_MARGIN / 2 * noise] = 0
    visible = ink > max(FAINT * contrast, _NOISE_MARGIN * noise)
    stroke = _strokes(ink, visible, max(_STRONG * contrast, least))
    ink[visible & ~stroke] = 0
    return Separated(ink, paper, stroke, _bounding_box(stroke))


def _in_full_light(paper: Pixels) -> Pixels:
    """Factors (h, w) that undo shadows: where paper is darker than most of it, dark ink has less contrast."""
    light: Pixels = np.clip(np.median(paper) / np.maximum(paper, 1.0), 1 / _SHADOW, _SHADOW)
    return light


def _no_ink(contrast: float, noise: float) -> str:
    if contrast <= LEAST_CONTRAST:
        return f"no ink found: expected a contrast above {LEAST_CONTRAST:.0f} of 255 grey levels, found {contrast:.0f}"
    return (
        f"no ink found: expected strokes that stand out from the paper, found noise: "
        f"the paper itself varies by {noise:.0f} grey levels, nothing departs from it by {_NOISE_MARGIN:.0f} times that"
    )


def estimate_paper(pixels: Pixels) -> Pixels:
    """The paper's level at every pixel (h, w).

    The paper of a reduced picture is a median over windows, which ignores ink. At full size, a pixel's level counts as
    paper if it lies between the levels of the paper around it, so a shadow's edge is kept.
    """
    height, width = pixels.shape
    picture = Image.fromarray(pixels)
    small = np.asarray(
        picture.resize(scaled_to(picture.size, min(_PAPER_SIDE, max(picture.size))), Image.Resampling.BOX)
    )
    reach = _PAPER_WINDOW // 2
    windows = _windows(np.pad(small, reach, mode="edge"), _PAPER_WINDOW)
    paper = np.median(windows[..., ::2, ::2], axis=(2, 3)).astype(np.float32)  # a quarter of the pixels is enough
    beside = _windows(np.pad(paper, 1, mode="edge"), 3)
    low, high = (
        np.asarray(Image.fromarray(level).resize((width, height), Image.Resampling.BILINEAR))
        for level in (beside.min(axis=(2, 3)), beside.max(axis=(2, 3)))
    )
    return np.clip(pixels, low, high)


def _windows(levels: Pixels, side: int) -> Pixels:
    """(h, w) -> a view (h - side + 1, w - side + 1, side, side)."""
    return np.lib.stride_tricks.sliding_window_view(levels, (side, side))


def _strokes(ink: Pixels, visible: Mask, strong: float) -> Mask:
    """The mask of visible parts with strong ink, without faint lines to the border: ruled lines or shadows."""
    core = ink > strong
    parts, count = label(visible & ~core)
    leaves = np.zeros(count + 1, dtype=bool)
    for edge in (parts[0], parts[-1], parts[:, 0], parts[:, -1]):
        leaves[edge] = True
    leaves[0] = False
    parts, count = label(visible & ~leaves[parts])
    weights = np.bincount(parts[core], weights=ink[core], minlength=count + 1)
    weights[0] = 0
    kept = weights > LEAST_PART * weights.max()
    return np.asarray(kept[parts])


def _bounding_box(stroke: Mask) -> Box:
    rows, columns = np.flatnonzero(stroke.any(axis=1)), np.flatnonzero(stroke.any(axis=0))
    left, top, right, bottom = int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1
    width, height = right - left, bottom - top
    cover = np.count_nonzero(stroke) / (width * height)
    if max(width, height) < _LEAST_SIDE or cover < _LEAST_COVER:
        raise BlankImage(f"no ink found: only specks, {cover:.1%} of {width}x{height} pixels")
    return left, top, right, bottom


def _surroundings(box: Box, scale: float, size: tuple[int, int]) -> Box:
    """The box with a margin, times `scale`, inside `size` (width, height)."""
    left, top, right, bottom = box
    margin = _MARGIN * max(right - left, bottom - top)
    return (
        max(0, int((left - margin) * scale)),
        max(0, int((top - margin) * scale)),
        min(size[0], int((right + margin) * scale) + 1),
        min(size[1], int((bottom + margin) * scale) + 1),
    )


def scaled_to(size: tuple[int, int], longer: int) -> tuple[int, int]:
    """(width, height) with `longer` as the longer side, aspect ratio kept."""
    width, height = (max(1, round(side * longer / max(size))) for side in size)
    return width, height
