"""Splits ink into separate shapes, left to right: the digits of a line.

Parts of ink, connected components, that lie above each other are a single shape, as a 5 with its flag. Digits that
touch, and lines of text below each other, are not split.
"""

import numpy as np

from clients.images.connected_components import bounds, label
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
    masks = [np.isin(parts, group) for group in _groups({int(number): bounds(parts == number)[1] for number in heavy})]
    boxes = [bounds(mask) for mask in masks]
    shapes = [np.where(mask[box], ink[box], np.float32(0)) for mask, box in zip(masks, boxes, strict=True)]
    tall = [shape for shape in shapes if len(shape) >= _LEAST_HEIGHT * max(map(len, shapes))]
    return tall if len(tall) > 1 else [ink]


def _groups(columns: dict[int, slice]) -> list[list[int]]:
    """Part number -> its columns. Returns the part numbers of every shape, left to right."""
    groups: list[tuple[list[int], int, int]] = []
    spans = ((number, span.start, span.stop) for number, span in columns.items())
    for number, left, right in sorted(spans, key=lambda span: span[1]):
        if groups:
            numbers, start, end = groups[-1]
            if min(right, end) - left > _SHARED * min(right - left, end - start):
                groups[-1] = ([*numbers, number], start, max(end, right))
                continue
        groups.append(([number], left, right))
    return [numbers for numbers, _, _ in groups]
