"""Draws coloured shapes: a dataset of colour pictures whose classes no single pixel tells apart.

Out: a `Dataset` of uint8 (n, 3, 64, 64). The class is the shape. Its place, size, angle and colours are random, as is
the noise over the picture.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from models.data.dataset import Dataset

SHAPES = ("circle", "cross", "ring", "square", "star", "triangle")
SIDE = 64  # pixels
OVERSAMPLING = 2  # shapes are drawn that much larger and shrunk, which smooths their edges
RADIUS = (0.15, 0.35)  # of the side
CONTRAST = 120  # least Euclidean distance of the two colours, of at most 442
NOISE = 20.0  # largest standard deviation of a pixel, of 255
TRAINED, TESTED = 12_000, 2_000  # pictures


def shapes() -> Dataset:
    return Dataset(
        "shapes", *labelled_shapes(TRAINED, seed=0), *labelled_shapes(TESTED, seed=1), SHAPES, preprocessing="photo"
    )


def labelled_shapes(count: int, seed: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """`count` pictures, uint8 (count, 3, 64, 64), and their labels."""
    rng, labels = np.random.default_rng(seed), np.arange(count) % len(SHAPES)
    return np.stack([_picture(SHAPES[label], rng) for label in labels]), labels


def _picture(shape: str, rng: np.random.Generator) -> NDArray[np.uint8]:
    """uint8 (3, 64, 64)."""
    background, colour = _colours(rng)
    side = SIDE * OVERSAMPLING
    radius = side * rng.uniform(*RADIUS)
    centre, angle = rng.uniform(radius, side - radius, 2), rng.uniform(0, 2 * math.pi)
    canvas = Image.new("RGB", (side, side), background)
    draw = ImageDraw.Draw(canvas)
    draw.polygon(_corners(shape, centre, radius, angle), fill=colour)
    if shape == "ring":
        draw.polygon(_corners(shape, centre, radius * rng.uniform(0.5, 0.75), angle), fill=background)
    pixels = np.asarray(canvas.resize((SIDE, SIDE), Image.Resampling.BOX), np.float64)  # (H, W, C)
    noisy = pixels + rng.normal(0, rng.uniform(0, NOISE), pixels.shape)
    return np.ascontiguousarray(noisy.clip(0, 255).astype(np.uint8).transpose(2, 0, 1))  # (C, H, W)


def _colours(rng: np.random.Generator) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    """Two colours (red, green, blue) that differ by CONTRAST or more."""
    while True:
        first, second = rng.integers(0, 256, (2, 3)).tolist()
        if math.dist(first, second) >= CONTRAST:
            return tuple(first), tuple(second)


def _corners(shape: str, centre: NDArray[np.float64], radius: float, turn: float) -> list[tuple[float, float]]:
    """The corners of the outline, (x, y) in pixels. A circle or ring is a polygon of 48 corners."""
    # Of a cross whose arms are a third of its width: the angle from an arm's middle to its corner, and the distance of
    # an inner corner, in radii.
    arm, diagonal = math.atan(1 / 3), math.sqrt(2) / math.sqrt(10)
    # The corners' distances from the centre, in radii.
    distances = {"square": [1.0] * 4, "star": [1.0, 0.4] * 5, "triangle": [1.0] * 3}.get(shape, [1.0] * 48)
    angles = [2 * math.pi * number / len(distances) for number in range(len(distances))]
    if shape == "cross":
        quarters = [math.pi / 2 * quarter for quarter in range(4)]
        angles = [quarter + step for quarter in quarters for step in (-arm, arm, math.pi / 4)]
        distances = [1.0, 1.0, diagonal] * 4
    x, y = centre
    return [
        (x + radius * distance * math.cos(turn + angle), y + radius * distance * math.sin(turn + angle))
        for distance, angle in zip(distances, angles, strict=True)
    ]
