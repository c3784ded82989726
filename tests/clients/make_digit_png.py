"""Draws digit.png, a 3 on paper: python tests/clients/make_digit_png.py"""

import math
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

DIGIT = "3"
TARGET = Path(__file__).resolve().parents[2] / "digit.png"
SIDE = 280
OVERSAMPLING = 4
PAPER, INK = (246, 241, 228), (33, 38, 84)
# In pixels of the finished picture.
STROKE = [(74, 76), (98, 52), (132, 49), (155, 71), (146, 100), (114, 118), (146, 126), (167, 156), (156, 192)]
STROKE += [(121, 211), (85, 201), (68, 180)]


def draw() -> Image.Image:
    large = SIDE * OVERSAMPLING
    pen = Image.new("L", (large, large), 0)
    canvas = ImageDraw.Draw(pen)
    path = list(_smooth([(x * OVERSAMPLING, y * OVERSAMPLING) for x, y in STROKE]))
    for step, (x, y) in enumerate(path):
        pressure = 0.85 + 0.15 * math.sin(9 * step / len(path))
        radius = 8.5 * OVERSAMPLING * pressure
        canvas.ellipse((x - radius, y - radius, x + radius, y + radius), fill=255)
    pen = pen.resize((SIDE, SIDE), Image.Resampling.LANCZOS).filter(ImageFilter.GaussianBlur(0.6))

    rng = np.random.default_rng(7)
    fibres = rng.normal(0, 2.0, (SIDE, SIDE, 1))
    light = np.linspace(4, -10, SIDE)[None, :, None]
    cover = np.asarray(pen, dtype=np.float64)[..., None] / 255 * rng.uniform(0.9, 1.0, (SIDE, SIDE, 1))
    paper = np.array(PAPER) + light + fibres
    return Image.fromarray(np.clip(paper + cover * (np.array(INK) - paper), 0, 255).round().astype(np.uint8))


def _smooth(points, steps=120):
    """Catmull-Rom curve (1974)."""
    padded = np.array([points[0], *points, points[-1]], dtype=np.float64)
    for before, start, end, after in zip(padded, padded[1:], padded[2:], padded[3:], strict=False):
        for t in np.linspace(0, 1, steps, endpoint=False):
            yield (
                (2 * start)
                + (end - before) * t
                + (2 * before - 5 * start + 4 * end - after) * t**2
                + (3 * start - before - 3 * end + after) * t**3
            ) / 2


if __name__ == "__main__":
    draw().save(TARGET, optimize=True)
