"""Splits ink into separate shapes, left to right: the digits of a line.

Parts of ink, connected components, that lie above each other are a single shape, as a 5 with its flag. Digits that
touch, and lines of text below each other, are not split.
"""

import numpy as np

from clients.images.connected_components import Mask, label
from clients.images.ink import FAINT, LEAST_PART, Pixels

_SHARED = 0.3  # of the narrower part's columns; parts that share more belong to the same shape
_LEAST_HEIGHT = 0.4  # of the tallest shape; smaller shapes are commas or dashes


def split_shapes(ink: Pixels) -> list[Pixels]:
    """Ink (h, w) -> the ink of every shape in its bounding box (h', w').

    If there is a single shape, returns all ink.
    """
    parts, count = label(ink > FAINT * ink.max())
    weights = np.bincount(parts.ravel(), weights=ink.ravel(), minlength=count + 1)
    weights[0] = 0
    heavy = np.flatnonzero(weights > LEAST_PART * weights.max())  # part numbers
    groups = _groups([(int(number), *_span(parts == number, axis=1)) for number in heavy])
    masks = [np.isin(parts, group) for group in groups]
    heights = [bottom - top for top, bottom in (_span(mask, axis=0) for mask in masks)]
    tall = [mask for mask, height in zip(masks, heights, strict=True) if height >= _LEAST_HEIGHT * max(heights)]
    return [_cut_out(ink, mask) for mask in tall] if len(tall) > 1 else [ink]


def _span(mask: Mask, axis: int) -> tuple[int, int]:
    """The first filled row (axis 0) or column (axis 1), and the end of the last, exclusive."""
    filled = np.flatnonzero(mask.any(axis=1 - axis))
    return int(filled[0]), int(filled[-1]) + 1


def _groups(spans: list[tuple[int, int, int]]) -> list[list[int]]:
    """Parts (number, first column, last column exclusive) -> the part numbers of every shape, left to right."""
    groups: list[tuple[list[int], int, int]] = []
    for number, left, right in sorted(spans, key=lambda span: span[1]):
        if groups:
            numbers, start, end = groups[-1]
            if min(right, end) - left > _SHARED * min(right - left, end - start):
                groups[-1] = ([*numbers, number], start, max(end, right))
                continue
        groups.append(([number], left, right))
    return [numbers for numbers, _, _ in groups]


def _cut_out(ink: Pixels, mask: Mask) -> Pixels:
    """The ink inside the mask, in the mask's bounding box."""
    (top, bottom), (left, right) = _span(mask, axis=0), _span(mask, axis=1)
    box = np.s_[top:bottom, left:right]
    return np.where(mask[box], ink[box], np.float32(0))
