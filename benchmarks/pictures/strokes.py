"""Random digits as a pen draws them."""

import math
from itertools import pairwise
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

from benchmarks.pictures.parts import Array

SIDE = 224  # pixels; eight times the field of MNIST
OVERSAMPLING = 2

# Pen positions: x to the right, y down, the digit 1 high. A tuple is drawn with straight lines, a list as a curve
# through its points.
FORMS: dict[int, list[list[Any]]] = {
    0: [
        [[(0.30, 0), (0.06, 0.22), (0.0, 0.55), (0.12, 0.9), (0.35, 1), (0.58, 0.8), (0.64, 0.42),
         (0.52, 0.08), (0.3, 0)]],
        [[(0.45, 0.03), (0.15, 0.08), (0.0, 0.45), (0.08, 0.85), (0.38, 1), (0.7, 0.75), (0.72, 0.3), (0.45, 0.03)]],
    ],
    1: [
        [((0.1, 0), (0.1, 1))],
        [((0, 0.2), (0.25, 0), (0.25, 1))],
        [((0.3, 0), (0, 1))],
    ],
    2: [
        [[(0.02, 0.25), (0.15, 0.05), (0.38, 0), (0.58, 0.16), (0.52, 0.42), (0.25, 0.75),
         (0, 1)], ((0, 1), (0.65, 0.98))],
        [
            [(0, 0.2), (0.2, 0), (0.45, 0.1), (0.45, 0.4), (0.2, 0.8), (0.03, 0.97), (0.02, 0.83), (0.18, 0.82),
             (0.4, 0.97), (0.66, 0.95)]
        ],
    ],
    3: [
        [
            [(0, 0.1), (0.25, 0), (0.52, 0.12), (0.5, 0.35), (0.2, 0.47)],
            [(0.2, 0.47), (0.52, 0.55), (0.6, 0.78), (0.35, 1), (0, 0.92)],
        ],
        [((0.02, 0.02), (0.55, 0.02), (0.25, 0.4)), [(0.25, 0.4), (0.55, 0.5), (0.58, 0.82), (0.28, 1), (0, 0.88)]],
    ],
    4: [
        [((0.15, 0), (0, 0.55), (0.6, 0.55)), ((0.5, 0.1), (0.45, 1))],
        [((0.45, 1), (0.45, 0), (0, 0.65), (0.65, 0.65))],
        [((0.05, 0), (0.02, 0.45), (0.55, 0.45)), ((0.55, 0), (0.52, 1))],
    ],
    5: [
        [((0.58, 0), (0.1, 0.02), (0.06, 0.42)), [(0.06, 0.42), (0.38, 0.38), (0.58, 0.65), (0.38, 0.97), (0, 0.93)]],
        [((0.1, 0.04), (0.05, 0.45)), [(0.05, 0.45), (0.4, 0.42), (0.55, 0.72), (0.3, 1), (0, 0.9)],
         ((0.12, 0), (0.6, 0))],
    ],
    6: [
        [[(0.45, 0), (0.15, 0.3), (0, 0.7), (0.2, 1), (0.5, 0.9), (0.52, 0.62), (0.28, 0.52), (0.03, 0.75)]],
        [[(0.2, 0), (0.03, 0.4), (0.03, 0.8), (0.25, 1), (0.48, 0.85), (0.42, 0.6), (0.2, 0.58), (0.03, 0.75)]],
    ],
    7: [
        [((0, 0.02), (0.6, 0), (0.2, 1))],
        [((0, 0.03), (0.58, 0.02)), [(0.58, 0.02), (0.38, 0.35), (0.28, 0.7), (0.26, 1)]],
        [((0, 0.02), (0.6, 0), (0.2, 1)), ((0.12, 0.5), (0.55, 0.47))],
    ],
    8: [
        [
            [(0.5, 0.12), (0.25, 0), (0.05, 0.2), (0.3, 0.47), (0.55, 0.75), (0.3, 1), (0.03, 0.78), (0.28, 0.48),
             (0.5, 0.28), (0.5, 0.12)]
        ],
        [
            [(0.28, 0), (0.06, 0.15), (0.12, 0.4), (0.3, 0.46), (0.5, 0.35), (0.5, 0.1), (0.28, 0)],
            [(0.3, 0.46), (0.04, 0.65), (0.08, 0.92), (0.3, 1), (0.54, 0.9), (0.55, 0.62), (0.3, 0.46)],
        ],
    ],
    9: [
        [[(0.5, 0.2), (0.28, 0), (0.03, 0.15), (0.08, 0.42), (0.32, 0.45), (0.5, 0.2)], ((0.5, 0.12), (0.46, 1))],
        [[(0.48, 0.25), (0.3, 0.02), (0.05, 0.15), (0.1, 0.42), (0.35, 0.42), (0.5, 0.15),
         (0.48, 0.6), (0.3, 0.9), (0.05, 1)]],
    ],
}  # fmt: skip


def draw_strokes(count: int, seed: int = 0) -> tuple[Array, Array]:
    """Ink uint8 (count, 224, 224), 255 = ink, and labels int64 (count,), all digits equally often."""
    rng = np.random.default_rng(seed)
    labels = np.arange(count) % 10
    return np.stack([_draw(FORMS[label][rng.integers(len(FORMS[label]))], rng) for label in labels]), labels


def _draw(form: list[Any], rng: np.random.Generator) -> Array:
    points = [_along(stroke, rng) for stroke in form]
    slant, squeeze, turn = rng.normal(0.1, 0.12), rng.uniform(0.8, 1.2), math.radians(rng.normal(0, 4))
    lean = np.array([[squeeze, -slant], [0, 1]])
    rotation = np.array([[math.cos(turn), -math.sin(turn)], [math.sin(turn), math.cos(turn)]])
    points = [path @ (rotation @ lean).T for path in points]
    every = np.concatenate(points)
    middle, extent = (every.min(0) + every.max(0)) / 2, np.ptp(every, axis=0).max()
    large = SIDE * OVERSAMPLING
    radius = large * rng.uniform(0.025, 0.05)  # 1.4 to 2.8 pixels wide in the field of MNIST
    reach = large * 20 / 28 - 2 * radius
    canvas = Image.new("L", (large, large))
    pen = ImageDraw.Draw(canvas)
    for path in points:
        for x, y in (path - middle) / extent * reach + large / 2:
            pen.ellipse((x - radius, y - radius, x + radius, y + radius), fill=255)
    return np.asarray(canvas.resize((SIDE, SIDE), Image.Resampling.BOX))


def _along(stroke: list[Any] | tuple[Any, ...], rng: np.random.Generator, steps: int = 60) -> Array:
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
