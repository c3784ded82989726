"""Digits drawn with a pen of our own, in forms that MNIST's writers hardly use.

Out: uint8 (n, 1, 28, 28), 255 = ink, and labels. European hands write a 1 with a long flag, often on a base, and a 7
with a bar; networks trained on MNIST alone read such a 1 as 7.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from models.data.dataset import DIGITS, DataError, Dataset
from models.data.digits import as_mnist

Point = tuple[float, float]
Stroke = tuple[Point, ...] | list[Point]
"""x to the right, y down, the digit 1 high. A tuple is drawn with straight lines, a list as a curve."""
Form = Sequence[Stroke]
Points = NDArray[np.float64]

SIDE = 320  # pixels of a drawing, 16 for each of the 20 pixels that a digit of MNIST is high

FORMS: dict[int, list[Form]] = {
    0: [
        [[(0.30, 0), (0.06, 0.22), (0.0, 0.55), (0.12, 0.9), (0.35, 1), (0.58, 0.8), (0.64, 0.42), (0.3, 0)]],
        [[(0.45, 0.03), (0.15, 0.08), (0.0, 0.45), (0.08, 0.85), (0.38, 1), (0.7, 0.75), (0.72, 0.3), (0.45, 0.03)]],
    ],
    2: [
        [[(0.02, 0.25), (0.15, 0.05), (0.38, 0), (0.58, 0.16), (0.52, 0.42), (0, 1)], ((0, 1), (0.65, 0.98))],
        [[(0, 0.2), (0.2, 0), (0.45, 0.1), (0.45, 0.4), (0.03, 0.97), (0.02, 0.83), (0.18, 0.82), (0.66, 0.95)]],
        [[(0, 0.18), (0.3, 0), (0.55, 0.2), (0.4, 0.55), (0, 0.98)], [(0, 0.98), (0.3, 0.93), (0.65, 1)]],
    ],
    3: [
        [[(0, 0.1), (0.25, 0), (0.52, 0.12), (0.5, 0.35), (0.2, 0.47)],
         [(0.2, 0.47), (0.52, 0.55), (0.6, 0.78), (0.35, 1), (0, 0.92)]],
        [((0.02, 0.02), (0.55, 0.02), (0.25, 0.4)), [(0.25, 0.4), (0.55, 0.5), (0.58, 0.82), (0.28, 1), (0, 0.88)]],
    ],
    4: [
        [((0.15, 0), (0, 0.55), (0.6, 0.55)), ((0.5, 0.1), (0.45, 1))],
        [((0.45, 1), (0.45, 0), (0, 0.65), (0.65, 0.65))],
        [((0.05, 0), (0.02, 0.45), (0.55, 0.45)), ((0.55, 0), (0.52, 1))],
        [((0.4, 0), (0, 0.7), (0.65, 0.7)), ((0.42, 0.4), (0.42, 1))],
    ],
    5: [
        [((0.58, 0), (0.1, 0.02), (0.06, 0.42)), [(0.06, 0.42), (0.38, 0.38), (0.58, 0.65), (0.38, 0.97), (0, 0.93)]],
        [((0.1, 0.04), (0.05, 0.45)), [(0.05, 0.45), (0.4, 0.42), (0.55, 0.72), (0.3, 1), (0, 0.9)],
         ((0.12, 0), (0.6, 0))],
    ],
    6: [
        [[(0.45, 0), (0.15, 0.3), (0, 0.7), (0.2, 1), (0.5, 0.9), (0.52, 0.62), (0.28, 0.52), (0.03, 0.75)]],
        [[(0.2, 0), (0.03, 0.4), (0.03, 0.8), (0.25, 1), (0.48, 0.85), (0.42, 0.6), (0.2, 0.58), (0.03, 0.75)]],
        [((0.4, 0), (0.08, 0.55)), [(0.08, 0.55), (0.02, 0.8), (0.25, 1), (0.5, 0.8), (0.3, 0.55), (0.05, 0.72)]],
    ],
    8: [
        [[(0.5, 0.12), (0.25, 0), (0.05, 0.2), (0.3, 0.47), (0.55, 0.75), (0.3, 1), (0.03, 0.78), (0.28, 0.48),
          (0.5, 0.28), (0.5, 0.12)]],
        [[(0.28, 0), (0.06, 0.15), (0.12, 0.4), (0.3, 0.46), (0.5, 0.35), (0.5, 0.1), (0.28, 0)],
         [(0.3, 0.46), (0.04, 0.65), (0.08, 0.92), (0.3, 1), (0.54, 0.9), (0.55, 0.62), (0.3, 0.46)]],
    ],
    9: [
        [[(0.5, 0.2), (0.28, 0), (0.03, 0.15), (0.08, 0.42), (0.32, 0.45), (0.5, 0.2)], ((0.5, 0.12), (0.46, 1))],
        [[(0.48, 0.25), (0.3, 0.02), (0.05, 0.15), (0.1, 0.42), (0.35, 0.42), (0.5, 0.15), (0.48, 0.6), (0.3, 0.9),
          (0.05, 1)]],
        [[(0.5, 0.2), (0.25, 0), (0, 0.22), (0.22, 0.45), (0.5, 0.2)], ((0.5, 0.2), (0.2, 1))],
    ],
}  # fmt: skip


def with_drawn(dataset: Dataset, count: int) -> Dataset:
    """Adds `count` drawn digits to the training part. Raises DataError for other pictures than MNIST's."""
    if dataset.train_images.shape[1:] != (1, 28, 28) or dataset.labels != DIGITS:
        raise DataError(f"{dataset.name}: expected digits of 1x28x28 beside drawn digits, found other pictures")
    return dataset.with_more(*drawn(count))


def drawn(count: int, seed: int = 0) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Images (count, 1, 28, 28) and labels, all digits equally often."""
    rng = np.random.default_rng(seed)
    labels = np.arange(count) % 10
    return np.stack([small(draw(_form(int(label), rng), rng, SIDE)) for label in labels]), labels


def small(ink: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """A drawing (SIDE, SIDE) -> uint8 (1, 28, 28), laid out as MNIST's digits."""
    reduced = Image.fromarray(ink).resize((20, 20), Image.Resampling.BOX)
    return as_mnist(np.asarray(reduced, np.float64) * (16 / 255))


def _form(label: int, rng: np.random.Generator) -> Form:
    others: dict[int, Callable[[np.random.Generator], Form]] = {1: _one, 7: _seven}
    return others[label](rng) if label in others else FORMS[label][rng.integers(len(FORMS[label]))]


def _one(rng: np.random.Generator) -> Form:
    """Four in five have a flag, of a sixth to over half of the height, 22 to 68 degrees from the stem; two in five have
    a base."""
    stem, top = 0.45, rng.uniform(0, 0.06)
    length, angle = rng.uniform(0.15, 0.55), math.radians(rng.uniform(22, 68))
    end = (stem - length * math.sin(angle), top + length * math.cos(angle))
    middle = ((end[0] + stem) / 2 + 0.02, (end[1] + top) / 2 + 0.06)
    drawing = rng.random()
    strokes: list[Stroke] = [((stem, top), (stem, 1))]
    if drawing < 0.2:
        strokes.append([end, middle, (stem, top)])
    elif drawing < 0.8:
        strokes.append((end, (stem, top)))
    if rng.random() < 0.4:
        half = rng.uniform(0.12, 0.32)
        strokes.append(((stem - half, 1), (stem + half, 1)))
    return strokes


def _seven(rng: np.random.Generator) -> Form:
    """Three in ten have a serif, two in five a bar."""
    width, bend = rng.uniform(0.45, 0.75), rng.uniform(-0.05, 0.12)
    foot = (rng.uniform(0.1, 0.5) * width, 1)
    strokes: list[Stroke] = [((0, 0.03), (width, 0)), [(width, 0), ((width + foot[0]) / 2 - bend, 0.45), foot]]
    if rng.random() < 0.3:
        strokes.append(((0, rng.uniform(0.1, 0.22)), (0, 0.03)))
    if rng.random() < 0.4:
        strokes.append(((0.1 * width, 0.5), (0.95 * width, 0.47)))
    return strokes


def draw(form: Form, rng: np.random.Generator, side: int) -> NDArray[np.uint8]:
    """Ink (side, side), 255 = ink, of a form that is shaken, slanted, squeezed and turned, by a pen of random width."""
    paths = [_along(stroke, rng) for stroke in form]
    slant, squeeze, turn = rng.normal(0.1, 0.12), rng.uniform(0.8, 1.2), math.radians(rng.normal(0, 4))
    lean = np.array([[squeeze, -slant], [0, 1]])
    rotation = np.array([[math.cos(turn), -math.sin(turn)], [math.sin(turn), math.cos(turn)]])
    paths = [path @ (rotation @ lean).T for path in paths]
    every = np.concatenate(paths)
    middle, extent = (every.min(0) + every.max(0)) / 2, np.ptp(every, axis=0).max()
    radius = side * rng.uniform(0.035, 0.07)  # 1.4 to 2.8 pixels wide where the digit is 20 high
    canvas = Image.new("L", (side, side))
    pen = ImageDraw.Draw(canvas)
    for path in paths:
        for x, y in (path - middle) / extent * (side - 2 * radius) + side / 2:
            pen.ellipse((x - radius, y - radius, x + radius, y + radius), fill=255)
    return np.asarray(canvas)


def _along(stroke: Stroke, rng: np.random.Generator, steps: int = 60) -> Points:
    """Points (n, 2): straight lines or a Catmull-Rom curve (1974)."""
    shaken = np.array(stroke) + rng.normal(0, 0.02, (len(stroke), 2))
    t = np.linspace(0, 1, steps)[:, None]
    if isinstance(stroke, tuple):
        return np.concatenate([start + t * (end - start) for start, end in pairwise(shaken)])
    padded = np.concatenate([shaken[:1], shaken, shaken[-1:]])
    return np.concatenate(
        [
            start + (t * (end - before) + t**2 * (2 * before - 5 * start + 4 * end - after)
                     + t**3 * (3 * start - before - 3 * end + after)) / 2
            for before, start, end, after in zip(padded, padded[1:], padded[2:], padded[3:], strict=False)
        ]
    )  # fmt: skip
