"""Finds the ink of a grey picture, without the paper, shadows, ruled lines, printed frames and specks.

Arrays are float32 (height, width) in grey levels, 0 to 255.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFilter

from clients.errors import BlankImage
from clients.images.connected_components import Mask, bounds, label
from clients.images.printed_frames import CERTAIN, TAKEN_AWAY, TAKEN_FOR_INK, erase_lines, find_frames, without_border

Pixels = NDArray[np.float32]
Box = tuple[int, int, int, int]  # left, top, right, bottom, the last two exclusive

LEAST_CONTRAST = 20.0  # grey levels
FAINT = 0.1  # of the darkest ink; what is fainter comes from compression or shadow
LEAST_PART = 0.05  # of the ink of the heaviest connected component; lighter components are specks

_MOST_FRAMES = 2  # in a picture, a frame inside the other
_WORKING_SIDE = 512  # pixels; larger pictures are reduced for the search
_BLURRED_FROM = 256  # pixels of a side; in smaller pictures blur would erase strokes
_PAPER_SIDE = 32  # pixels of the reduced picture from which paper is estimated: light changes slowly
_PAPER_WINDOW = 25  # of its pixels; so large a window is mostly paper; the median takes every second pixel, 13 a side
_SHADOW = 2.5  # times darker than most of the paper; deeper shadows are undone only so far
_NOISE_MARGIN = 6.0  # standard deviations; a megapixel of Gaussian noise stays below 5.5
_STRONG = 0.4  # of the darkest ink; every stroke reaches it somewhere
_LEAST_SIDE = 6  # pixels of the ink's longer side
_LEAST_COVER = 0.02  # of the bounding box; scattered specks cover less
_MARGIN = 0.5  # of the ink's longer side, kept around it


@dataclass(frozen=True)
class SeparatedInk:
    """The ink and the paper of a picture.

    ink:     (h, w), contrast with the paper, 0 = none.
    paper:   (h, w), grey levels.
    strokes: (h, w), mask of the ink that belongs to strokes.
    box:     bounds the strokes.
    """

    ink: Pixels
    paper: Pixels
    strokes: Mask
    box: Box

    @property
    def contrast(self) -> float:
        return float(self.ink[self.strokes].max())


def find_ink(grey: Image.Image) -> tuple[Pixels, tuple[str, ...]]:
    """Mode "L" -> the ink in its bounding box (h, w), 0 = paper, without frames; notes for the user.

    Raises BlankImage.
    """
    inside = without_border(grey)
    notes = {TAKEN_AWAY: inside is not grey}
    separated, view = _separate_closely(inside)
    for _ in range(_MOST_FRAMES):
        frames = find_frames(separated.strokes)
        if frames is None:
            break
        lines, is_certain = frames
        try:
            inner, inner_view = _separate_closely(erase_lines(view, lines, separated.paper))
        except BlankImage:
            inner = None
        if inner is None or not (is_certain or inner.contrast > CERTAIN):
            notes[TAKEN_FOR_INK] = True
            break
        separated, view = inner, inner_view
        notes[TAKEN_AWAY] = True
    left, top, right, bottom = separated.box
    return separated.ink[top:bottom, left:right], tuple(note for note, applies in notes.items() if applies)


def _separate_closely(grey: Image.Image) -> tuple[SeparatedInk, Image.Image]:
    """Crops the picture until ink fills it, so that a small digit on a large sheet keeps its detail.

    Returns the ink of the last crop, and the last crop. Raises BlankImage.
    """
    while True:
        view = grey
        if max(grey.size) > _WORKING_SIDE:
            view = grey.resize(scaled_to(grey.size, _WORKING_SIDE), Image.Resampling.BOX)
        if max(view.size) >= _BLURRED_FROM:
            view = view.filter(ImageFilter.BoxBlur(1))
        separated = separate(np.asarray(view, dtype=np.float32))
        crop = _surroundings(separated.box, max(grey.size) / max(view.size), grey.size)
        area = (crop[2] - crop[0]) * (crop[3] - crop[1])
        if area > 0.8 * grey.width * grey.height:
            return separated, grey
        grey = grey.crop(crop)


def separate(pixels: Pixels) -> SeparatedInk:
    """Separates ink from paper in grey levels (h, w). Raises BlankImage."""
    paper = estimate_paper(pixels)
    difference = pixels - paper
    borders = (difference[0], difference[-1], difference[:, 0], difference[:, -1])
    border = np.concatenate(borders)  # mostly paper, however large the digit
    difference -= np.median(border)
    noise = 1.4826 * float(np.median(np.abs(border - np.median(border))))  # standard deviation by the median
    least_contrast = max(LEAST_CONTRAST, _NOISE_MARGIN * noise)

    # The fourth power lets a thin stroke outweigh a wide shadow.
    brighter, darker = (float((side[side > least_contrast] ** 4).sum()) for side in (difference, -difference))
    ink = np.clip(difference if brighter > darker else -difference * _shadow_factors(paper), 0, None)
    contrast = float(ink.max())
    if contrast <= least_contrast:
        raise BlankImage(_no_ink(contrast, noise))
    ink[ink < _NOISE_MARGIN / 2 * noise] = 0
    visible = ink > max(FAINT * contrast, _NOISE_MARGIN * noise)
    strokes = _strokes(ink, visible, max(_STRONG * contrast, least_contrast))
    ink[visible & ~strokes] = 0
    return SeparatedInk(ink, paper, strokes, _bounding_box(strokes))


def _shadow_factors(paper: Pixels) -> Pixels:
    """Factors (h, w) for the contrast of dark ink, which is lower in a shadow: there the paper is darker than most."""
    factors: Pixels = np.clip(np.median(paper) / np.maximum(paper, 1.0), 1 / _SHADOW, _SHADOW)
    return factors


def _no_ink(contrast: float, noise: float) -> str:
    if contrast <= LEAST_CONTRAST:
        return f"no ink found: expected a contrast above {LEAST_CONTRAST:.0f} of 255 grey levels, found {contrast:.0f}"
    return (
        f"no ink found: expected strokes that stand out from the paper, found noise: "
        f"the paper itself varies by {noise:.0f} grey levels, nothing departs from it by {_NOISE_MARGIN:.0f} times that"
    )


def estimate_paper(pixels: Pixels) -> Pixels:
    """Grey levels (h, w) -> the paper's level at every pixel (h, w).

    In a reduced picture, the paper is the median of a window, which ignores ink. At full size a pixel's own level is
    clipped to the range of the paper around it, so the edge of a shadow stays sharp.
    """
    height, width = pixels.shape
    picture = Image.fromarray(pixels)
    small = np.asarray(
        picture.resize(scaled_to(picture.size, min(_PAPER_SIDE, max(picture.size))), Image.Resampling.BOX)
    )
    reach = _PAPER_WINDOW // 2
    windows = _windows(np.pad(small, reach, mode="edge"), _PAPER_WINDOW)
    paper = np.median(windows[..., ::2, ::2], axis=(2, 3)).astype(np.float32)  # a quarter of the pixels is enough
    neighbours = _windows(np.pad(paper, 1, mode="edge"), 3)
    low, high = (
        np.asarray(Image.fromarray(level).resize((width, height), Image.Resampling.BILINEAR))
        for level in (neighbours.min(axis=(2, 3)), neighbours.max(axis=(2, 3)))
    )
    return np.clip(pixels, low, high)


def _windows(levels: Pixels, side: int) -> Pixels:
    """(h, w) -> a view (h - side + 1, w - side + 1, side, side)."""
    return np.lib.stride_tricks.sliding_window_view(levels, (side, side))


def _strokes(ink: Pixels, visible: Mask, strong: float) -> Mask:
    """The mask (h, w) of visible parts, connected components, that have strong ink.

    Faint parts that reach the border are ruled lines or shadows, and are removed first.
    """
    core = ink > strong
    parts, count = label(visible & ~core)
    reaches_border = np.zeros(count + 1, dtype=bool)
    for edge in (parts[0], parts[-1], parts[:, 0], parts[:, -1]):
        reaches_border[edge] = True
    reaches_border[0] = False
    parts, count = label(visible & ~reaches_border[parts])
    weights = np.bincount(parts[core], weights=ink[core], minlength=count + 1)
    weights[0] = 0
    is_stroke = weights > LEAST_PART * weights.max()
    return np.asarray(is_stroke[parts])


def _bounding_box(strokes: Mask) -> Box:
    """Raises BlankImage if the strokes are only specks."""
    rows, columns = bounds(strokes)
    left, top, right, bottom = columns.start, rows.start, columns.stop, rows.stop
    width, height = right - left, bottom - top
    cover = np.count_nonzero(strokes) / (width * height)
    if max(width, height) < _LEAST_SIDE or cover < _LEAST_COVER:
        raise BlankImage(f"no ink found: only specks, {cover:.1%} of {width}x{height} pixels")
    return left, top, right, bottom


def _surroundings(box: Box, scale: float, size: tuple[int, int]) -> Box:
    """The box with a margin, enlarged by `scale` and clipped to `size` (width, height)."""
    left, top, right, bottom = box
    margin = _MARGIN * max(right - left, bottom - top)
    return (
        max(0, int((left - margin) * scale)),
        max(0, int((top - margin) * scale)),
        min(size[0], int((right + margin) * scale) + 1),
        min(size[1], int((bottom + margin) * scale) + 1),
    )


def scaled_to(size: tuple[int, int], longer: int) -> tuple[int, int]:
    """`size` (width, height) scaled so that the longer side is `longer` pixels."""
    width, height = (max(1, round(side * longer / max(size))) for side in size)
    return width, height
