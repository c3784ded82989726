"""Letters, shapes and scribbles, drawn by the pen of drawn_digits.py: what a network of digits should reject.

Out: uint8 (n, 1, 28, 28), 255 = ink, laid out as digits are. Letters that are also a way to write a digit (I, O, S, Z,
b, g, q) are left out. A training may see every second form; the others and the scribbles judge.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFilter

from models.data.drawn_digits import SIDE, Form, Stroke, draw, small

FILLED = 0.15  # share of filled forms
SCRIBBLED = 0.2  # share of scribbles

LETTERS: dict[str, Form] = {
    "A": [((0, 1), (0.35, 0), (0.7, 1)), ((0.15, 0.6), (0.55, 0.6))],
    "C": [[(0.65, 0.15), (0.4, 0), (0.1, 0.2), (0, 0.5), (0.12, 0.85), (0.4, 1), (0.68, 0.85)]],
    "D": [((0, 0), (0, 1)), [(0, 0), (0.45, 0.05), (0.65, 0.45), (0.5, 0.9), (0, 1)]],
    "E": [((0.6, 0), (0, 0), (0, 1), (0.6, 1)), ((0, 0.5), (0.5, 0.5))],
    "F": [((0.6, 0), (0, 0), (0, 1)), ((0, 0.48), (0.45, 0.48))],
    "H": [((0, 0), (0, 1)), ((0.65, 0), (0.65, 1)), ((0, 0.5), (0.65, 0.5))],
    "K": [((0, 0), (0, 1)), ((0.6, 0), (0, 0.55)), ((0.15, 0.42), (0.62, 1))],
    "L": [((0, 0), (0, 1), (0.55, 1))],
    "M": [((0, 1), (0.05, 0), (0.42, 0.65), (0.8, 0), (0.85, 1))],
    "N": [((0, 1), (0, 0), (0.65, 1), (0.65, 0))],
    "P": [((0, 0), (0, 1)), [(0, 0.02), (0.45, 0.02), (0.58, 0.25), (0.42, 0.5), (0, 0.52)]],
    "R": [((0, 0), (0, 1)), [(0, 0.02), (0.45, 0.02), (0.56, 0.25), (0.4, 0.5), (0, 0.52)], ((0.2, 0.52), (0.6, 1))],
    "T": [((0, 0), (0.7, 0)), ((0.35, 0), (0.35, 1))],
    "U": [[(0, 0), (0.02, 0.7), (0.3, 1), (0.6, 0.7), (0.62, 0)]],
    "V": [((0, 0), (0.32, 1), (0.65, 0))],
    "W": [((0, 0), (0.2, 1), (0.42, 0.3), (0.65, 1), (0.85, 0))],
    "X": [((0, 0), (0.62, 1)), ((0.62, 0), (0, 1))],
    "Y": [((0, 0), (0.32, 0.48), (0.65, 0)), ((0.32, 0.48), (0.32, 1))],
    "a": [[(0.55, 0.15), (0.25, 0), (0, 0.45), (0.2, 0.95), (0.5, 0.7), (0.55, 0.1)],
          [(0.55, 0.1), (0.58, 0.8), (0.8, 1)]],
    "d": [[(0.5, 0.5), (0.2, 0.42), (0, 0.75), (0.2, 1), (0.5, 0.8)], ((0.52, 0), (0.52, 1))],
    "e": [[(0.03, 0.5), (0.6, 0.45), (0.45, 0.05), (0.12, 0.15), (0, 0.6), (0.25, 1), (0.62, 0.85)]],
    "h": [((0, 0), (0, 1)), [(0, 0.6), (0.25, 0.42), (0.48, 0.55), (0.5, 1)]],
    "k": [((0, 0), (0, 1)), ((0.45, 0.4), (0.02, 0.7)), ((0.12, 0.62), (0.5, 1))],
    "m": [((0, 0), (0, 1)), [(0, 0.35), (0.25, 0), (0.42, 0.3), (0.44, 1)],
          [(0.44, 0.35), (0.7, 0), (0.88, 0.3), (0.9, 1)]],
    "n": [((0, 0), (0, 1)), [(0, 0.35), (0.3, 0), (0.58, 0.3), (0.62, 1)]],
    "r": [((0, 0), (0, 1)), [(0, 0.4), (0.2, 0.08), (0.5, 0.05)]],
    "t": [[(0.25, 0), (0.25, 0.8), (0.4, 1), (0.6, 0.9)], ((0, 0.3), (0.55, 0.3))],
    "u": [[(0, 0), (0.05, 0.75), (0.3, 1), (0.6, 0.6)], ((0.62, 0), (0.66, 1))],
    "w": [[(0, 0), (0.1, 0.8), (0.25, 1), (0.42, 0.3), (0.6, 1), (0.8, 0.7), (0.85, 0)]],
}  # fmt: skip

SHAPES: dict[str, Form] = {
    "triangle": [((0.5, 0), (1, 0.9), (0, 0.9), (0.5, 0))],
    "square": [((0, 0), (1, 0), (1, 1), (0, 1), (0, 0))],
    "diamond": [((0.4, 0), (0.8, 0.5), (0.4, 1), (0, 0.5), (0.4, 0))],
    "plus": [((0.5, 0), (0.5, 1)), ((0, 0.5), (1, 0.5))],
    "star": [((0.5, 0), (0.8, 1), (0, 0.38), (1, 0.38), (0.2, 1), (0.5, 0))],
    "arrow": [((0, 0.5), (1, 0.5)), ((0.65, 0.15), (1, 0.5), (0.65, 0.85))],
    "tick": [((0, 0.55), (0.3, 1), (0.9, 0))],
    "heart": [[(0.5, 1), (0, 0.4), (0.2, 0.02), (0.5, 0.25), (0.8, 0.02), (1, 0.4), (0.5, 1)]],
    "wave": [[(0, 0.5), (0.2, 0.2), (0.4, 0.6), (0.6, 0.2), (0.8, 0.6), (1, 0.3)]],
    "spiral": [[(0.5, 0.5), (0.6, 0.4), (0.65, 0.6), (0.4, 0.7), (0.25, 0.45), (0.5, 0.15), (0.9, 0.4), (0.7, 0.95),
                (0.1, 0.9)]],
    "stroke": [((0, 0.5), (1, 0.5))],
    "equals": [((0, 0.3), (0.8, 0.3)), ((0, 0.65), (0.8, 0.65))],
    "hash": [((0.3, 0), (0.25, 1)), ((0.7, 0), (0.65, 1)), ((0, 0.3), (1, 0.3)), ((0, 0.7), (1, 0.7))],
    "smile": [[(0.5, 0), (0, 0.3), (0.1, 0.8), (0.5, 1), (0.9, 0.8), (1, 0.3), (0.5, 0)],
              [(0.3, 0.65), (0.5, 0.78), (0.7, 0.65)], ((0.35, 0.3), (0.35, 0.4)), ((0.65, 0.3), (0.65, 0.4))],
}  # fmt: skip

FORMS = (*LETTERS.values(), *SHAPES.values())
TRAINED, JUDGED = FORMS[::2], FORMS[1::2]


def not_digits(
    count: int, seed: int = 0, forms: Sequence[Form] = JUDGED, scribbled: float = SCRIBBLED
) -> NDArray[np.uint8]:
    """Images (count, 1, 28, 28): each form in turn; instead of a share `scribbled` of them a scribble."""
    rng = np.random.default_rng(seed)
    images = []
    for number in range(count):
        scribble = rng.random() < scribbled
        ink = draw(_scribble(rng) if scribble else forms[number % len(forms)], rng, SIDE)
        if not scribble and rng.random() < FILLED:
            ink = _filled(ink)
        images.append(small(ink))
    return np.stack(images)


def _scribble(rng: np.random.Generator) -> Form:
    points = [(float(x), float(y)) for x, y in rng.uniform(0, 1, (rng.integers(4, 11), 2))]
    stroke: Stroke = points if rng.random() < 0.6 else tuple(points)
    return [stroke]


def _filled(ink: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Fills each row from its first to its last ink."""
    closed = np.asarray(Image.fromarray(ink).filter(ImageFilter.MaxFilter(3))) > 0
    first, last = closed.argmax(axis=1), closed.shape[1] - closed[:, ::-1].argmax(axis=1)
    place = np.arange(closed.shape[1])
    inside = closed.any(axis=1)[:, None] & (place >= first[:, None]) & (place < last[:, None])
    return np.where(inside, np.uint8(255), np.uint8(0))
