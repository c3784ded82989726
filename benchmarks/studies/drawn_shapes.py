"""Draws coloured shapes, for trainings on pictures in colour whose classes no single pixel tells apart.

Out: a `Dataset` of uint8 (n, 3, 64, 64). Place, size, turn, colours and the grain of shape and background are random.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from models.data.dataset import Dataset

SHAPES = ("circle", "cross", "ring", "square", "star", "triangle")
SIDE, FINER = 64, 2  # pixels; drawn that much larger
RADIUS = (0.15, 0.35)  # of the side
CONTRAST = 120  # least distance of the two colours, of 442
GRAIN = 20.0  # largest standard deviation of a pixel, of 255
TRAINED, TESTED = 12_000, 2_000  # pictures


def shapes() -> Dataset:
    (train, train_labels), (test, test_labels) = _drawn(TRAINED, seed=0), _drawn(TESTED, seed=1)
    return Dataset("shapes", train, train_labels, test, test_labels, SHAPES, preprocessing="photo")


def _drawn(count: int, seed: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    rng, labels = np.random.default_rng(seed), np.arange(count) % len(SHAPES)
    return np.stack([_picture(SHAPES[label], rng) for label in labels]), labels


def _picture(shape: str, rng: np.random.Generator) -> NDArray[np.uint8]:
    """uint8 (3, 64, 64)."""
    paper, paint = _colours(rng)
    side = SIDE * FINER
    radius = side * rng.uniform(*RADIUS)
    centre, turn = rng.uniform(radius, side - radius, 2), rng.uniform(0, 2 * math.pi)
    canvas = Image.new("RGB", (side, side), paper)
    pen = ImageDraw.Draw(canvas)
    pen.polygon(_corners(shape, centre, radius, turn), fill=paint)
    if shape == "ring":
        pen.polygon(_corners(shape, centre, radius * rng.uniform(0.5, 0.75), turn), fill=paper)
    pixels = np.asarray(canvas.resize((SIDE, SIDE), Image.Resampling.BOX), np.float64)  # (H, W, C)
    grainy = pixels + rng.normal(0, rng.uniform(0, GRAIN), pixels.shape)
    return np.ascontiguousarray(grainy.clip(0, 255).astype(np.uint8).transpose(2, 0, 1))


def _colours(rng: np.random.Generator) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    while True:
        first, second = rng.integers(0, 256, (2, 3)).tolist()
        if math.dist(first, second) >= CONTRAST:
            return tuple(first), tuple(second)


def _corners(shape: str, centre: NDArray[np.float64], radius: float, turn: float) -> list[tuple[float, float]]:
    """Every corner's distance from the centre, in radii, by shape."""
    arm, diagonal = math.atan(1 / 3), math.sqrt(2) / math.sqrt(10)  # a cross with arms a third of its width
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
