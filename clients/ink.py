"""Where the ink is: a grey picture of one digit in, what its pen left on the paper out, whatever light fell on it.

    estimate_paper   grey levels -> the paper's grey level at every pixel, by a median over wide windows
    separate         grey levels -> ink on 0, without paper, light, printed lines and specks
    find_ink         grey picture -> the same of its digit alone, at whatever size it stands there

Arrays are float32 (height, width) in grey levels, 0 to 255.
"""

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFilter

from clients.decode import BlankImage

Pixels = NDArray[np.float32]
Mask = NDArray[np.bool_]
Box = tuple[int, int, int, int]  # left, top, right, bottom, the last two exclusive

_WORKING_SIDE = 512  # pixels in which ink is looked for: a few milliseconds whatever the picture's size
_BLURRED_FROM = 256  # pixels a side; in smaller pictures a blur would eat the strokes
_PAPER_SIDE = 32  # pixels in which paper is looked for; light changes slowly
_PAPER_WINDOW = 31  # of these pixels; paper is the most of any window so wide, even where ink fills the picture
_LEAST_CONTRAST = 20.0  # grey levels between ink and paper
_NOISE_MARGIN = 6.0  # standard deviations of the paper's noise; a megapixel of Gaussian noise stays under 5.5
_STRONG = 0.4  # of the darkest ink is what a stroke has somewhere
_FAINT = 0.1  # of the darkest ink; fainter alone, by compression or a shadow, does not widen the box
_LEAST_PART = 0.05  # of the heaviest part is what a stroke weighs; lighter is a speck
_LEAST_SIDE = 6  # pixels of the ink's longer side; smaller is a speck, and no digit could be read in it
_LEAST_COVER = 0.02  # of its bounding box is what a digit's strokes cover; scattered specks cover less
_MARGIN = 0.5  # of the ink's longer side is the paper kept around it when looking closer


def find_ink(grey: Image.Image) -> Pixels:
    """Mode "L" -> float32 (h, w), the bounding box of the ink, 0 = paper.

    What is found is cut out with the paper around it and searched again until it fills the view, so that a small
    digit on a large sheet keeps its detail and is judged by the paper it stands on. Raises BlankImage.
    """
    while True:
        view = grey
        if max(grey.size) > _WORKING_SIDE:
            view = grey.resize(scaled_to(grey.size, _WORKING_SIDE), Image.Resampling.BOX)
        if max(view.size) >= _BLURRED_FROM:
            view = view.filter(ImageFilter.BoxBlur(1))
        ink, box = separate(np.asarray(view, dtype=np.float32))
        closer = _surroundings(box, max(grey.size) / max(view.size), grey.size)
        area = (closer[2] - closer[0]) * (closer[3] - closer[1])
        if area > 0.8 * grey.width * grey.height:
            left, top, right, bottom = box
            return ink[top:bottom, left:right]
        grey = grey.crop(closer)


def separate(pixels: Pixels) -> tuple[Pixels, Box]:
    """Grey levels (h, w) -> how far each is from the paper towards the ink, 0 on paper; and the ink's bounding box.

    Raises BlankImage.
    """
    away = pixels - estimate_paper(pixels)
    edge = np.concatenate([away[0], away[-1], away[:, 0], away[:, -1]])  # mostly paper, however large the digit
    away -= np.median(edge)
    noise = 1.4826 * float(np.median(np.abs(edge - np.median(edge))))  # the standard deviation, as the median sees it
    least = max(_LEAST_CONTRAST, _NOISE_MARGIN * noise)

    # The ink is on the side that strays far from the paper; the fourth power hears the few pixels of a thin stroke
    # above a shadow's many.
    brighter, darker = (float((side[side > least] ** 4).sum()) for side in (away, -away))
    ink = np.clip(away if brighter > darker else -away, 0, None)
    contrast = float(ink.max())
    if contrast <= least:
        raise BlankImage(f"no ink found: contrast {contrast:.0f} of 255 grey levels, expected more than {least:.0f}")
    ink[ink < _NOISE_MARGIN / 2 * noise] = 0
    visible = ink > max(_FAINT * contrast, _NOISE_MARGIN * noise)
    stroke = _strokes(ink, visible, max(_STRONG * contrast, least))
    ink[visible & ~stroke] = 0
    return ink, _bounding_box(stroke)


def estimate_paper(pixels: Pixels) -> Pixels:
    """The paper's grey level at every pixel, (h, w) -> (h, w).

    A median over windows in which paper is the most leaves out the ink and keeps the edge of a shadow. Beyond the
    border its pixels are repeated, under which a median keeps light that grows towards one side.
    """
    height, width = pixels.shape
    picture = Image.fromarray(pixels)
    small = picture.resize(scaled_to(picture.size, min(_PAPER_SIDE, max(picture.size))), Image.Resampling.BOX)
    reach = _PAPER_WINDOW // 2
    padded = np.pad(np.asarray(small), reach, mode="edge")
    windows = np.lib.stride_tricks.sliding_window_view(padded, (_PAPER_WINDOW, _PAPER_WINDOW))
    paper = np.median(windows[..., ::2, ::2], axis=(2, 3)).astype(np.float32)  # a quarter tells as much as all
    return np.asarray(Image.fromarray(paper).resize((width, height), Image.Resampling.BICUBIC))


def _strokes(ink: Pixels, visible: Mask, strong: float) -> Mask:
    """Of the visible pixels those of the digit: all parts with strong ink, and the fainter ink that hangs on them.

    Faint lines that run off the picture are not of the digit, but ruled on the paper or the edge of a shadow.
    """
    core = ink > strong
    parts, count = label(visible & ~core)
    runs_off = np.zeros(count + 1, dtype=bool)
    for edge in (parts[0], parts[-1], parts[:, 0], parts[:, -1]):
        runs_off[edge] = True
    runs_off[0] = False
    parts, count = label(visible & ~runs_off[parts])
    weights = np.bincount(parts[core], weights=ink[core], minlength=count + 1)
    weights[0] = 0
    kept = weights > _LEAST_PART * weights.max()
    return np.asarray(kept[parts])


def label(mask: Mask) -> tuple[NDArray[np.intp], int]:
    """The connected parts of a mask (h, w), corners connect: their numbers from 1 on, 0 outside, and their count.

    Runs of pixels along the rows are joined with those that touch them in the next row; each run takes the least number
    of its neighbours and of the run with that number, until none changes (Shiloach and Vishkin, An O(log n) Parallel
    Connectivity Algorithm, 1982).
    """
    height, width = mask.shape
    stride = width + 2  # so that no run goes over the end of a row
    padded = np.zeros((height, stride), dtype=np.int8)
    padded[:, 1:-1] = mask
    steps = np.diff(padded.ravel())
    starts, ends = np.flatnonzero(steps == 1) + 1, np.flatnonzero(steps == -1) + 1  # ends exclusive
    first = np.searchsorted(ends, starts + stride)  # of the runs in the next row that touch this one
    last = np.searchsorted(starts, ends + stride, side="right")
    touching = np.maximum(last - first, 0)
    above = np.repeat(np.arange(len(starts)), touching)
    below = np.arange(len(above)) - np.repeat(np.cumsum(touching) - touching, touching) + np.repeat(first, touching)
    root = np.arange(len(starts))
    while True:
        lower = np.minimum(root[above], root[below])
        joined = root.copy()
        for each in (above, below):
            np.minimum.at(joined, root[each], lower)
        joined = joined[joined]
        if np.array_equal(joined, root):
            break
        root = joined
    numbers = np.unique(root, return_inverse=True)[1] + 1
    changes = np.zeros(height * stride + 1, dtype=np.intp)
    changes[starts] += numbers
    changes[ends] -= numbers
    labels = np.cumsum(changes[:-1]).reshape(height, stride)[:, 1:-1]
    return labels, int(numbers.max(initial=0))


def _bounding_box(stroke: Mask) -> Box:
    """Mask (h, w) -> the box around what is true, when that can be a digit."""
    rows, columns = np.flatnonzero(stroke.any(axis=1)), np.flatnonzero(stroke.any(axis=0))
    left, top, right, bottom = int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1
    width, height = right - left, bottom - top
    cover = np.count_nonzero(stroke) / (width * height)
    if max(width, height) < _LEAST_SIDE or cover < _LEAST_COVER:
        raise BlankImage(f"no ink found: only specks, {cover:.1%} of {width}x{height} pixels")
    return left, top, right, bottom


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


def scaled_to(size: tuple[int, int], longer: int) -> tuple[int, int]:
    """Width and height with the longer side as given, the aspect ratio kept, and no side empty."""
    width, height = (max(1, round(side * longer / max(size))) for side in size)
    return width, height
