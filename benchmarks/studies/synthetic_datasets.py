"""Draws the datasets DRAWN: coloured shapes and grey textures.

Out: a `Dataset` of uint8 (n, C, H, W). In `shapes`, (n, 3, 64, 64), no single pixel tells the classes apart: the class
is the shape. Its place, size, angle and colours are random, as is the noise over the picture. The textures, (n, 1, 20,
20), differ pixel by pixel: turning, moving or mixing them hides the class. Each class of `weak_pattern` and
`smooth_pattern` is a random pattern that is a third as strong as the noise over it. Each class of `noise` is a strength
of noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from models.data.dataset import Dataset

Draw = Callable[[int, np.random.Generator], NDArray[np.uint8]]  # label -> picture (C, H, W)

SHAPES = ("circle", "cross", "ring", "square", "star", "triangle")
SIDE = 64  # pixels
OVERSAMPLING = 2  # shapes are drawn that much larger and shrunk, which smooths their edges
RADIUS = (0.15, 0.35)  # of the side
CONTRAST = 120  # least Euclidean distance of the two colours, of at most 442
SHAPE_NOISE = 20.0  # largest standard deviation of a pixel, of 255

TEXTURES = ("a", "b", "c", "d")
TEXTURE_SIZES = (20, 20)  # pixels
GREY = 128.0
PATTERN, NOISE = 15.0, 50.0  # standard deviations of a pattern, and of the noise over it, of 255
STRENGTHS = (20.0, 30.0, 40.0, 50.0)  # standard deviations of the classes of `noise`, of 255
COARSE = 5  # pixels a side of a smooth pattern before it is enlarged


def shapes(trained: int = 12_000, tested: int = 2_000) -> Dataset:
    """`trained`, `tested`: numbers of pictures."""
    return _dataset("shapes", _shape, SHAPES, trained, tested)


def weak_pattern() -> Dataset:
    """A class is a pattern of independent dark and bright pixels."""
    sizes = (len(TEXTURES), *TEXTURE_SIZES)
    return _patterns("weak-pattern", np.random.default_rng(2).choice([-PATTERN, PATTERN], sizes))


def smooth_pattern() -> Dataset:
    """A class is a pattern of soft spots."""
    coarse = np.random.default_rng(2).normal(0, 1, (len(TEXTURES), COARSE, COARSE)).astype(np.float32)
    enlarged = [Image.fromarray(pattern).resize(TEXTURE_SIZES, Image.Resampling.BICUBIC) for pattern in coarse]
    smooth = np.stack([np.asarray(image, np.float64) for image in enlarged])
    return _patterns("smooth-pattern", smooth * (PATTERN / smooth.std((1, 2), keepdims=True)))


def noise() -> Dataset:
    """A class is a strength of noise."""
    return _textures("noise", lambda label, rng: rng.normal(0, STRENGTHS[label], TEXTURE_SIZES))


DRAWN: dict[str, Callable[[], Dataset]] = {
    "shapes": shapes,
    "weak-pattern": weak_pattern,
    "smooth-pattern": smooth_pattern,
    "noise": noise,
}


def _dataset(name: str, draw: Draw, classes: tuple[str, ...], trained: int, tested: int) -> Dataset:
    def part(count: int, seed: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        rng, labels = np.random.default_rng(seed), np.arange(count) % len(classes)
        return np.stack([draw(label, rng) for label in labels]), labels

    return Dataset(name, *part(trained, seed=0), *part(tested, seed=1), classes, preprocessing="photo")


def _textures(name: str, levels: Callable[[int, np.random.Generator], NDArray[np.float64]]) -> Dataset:
    """`levels`: label -> levels of a picture (H, W), 0 = grey."""

    def draw(label: int, rng: np.random.Generator) -> NDArray[np.uint8]:
        return (GREY + levels(label, rng)).clip(0, 255).astype(np.uint8)[None]

    return _dataset(name, draw, TEXTURES, 1200, 1000)


def _patterns(name: str, patterns: NDArray[np.float64]) -> Dataset:
    """`patterns`: (classes, H, W)."""
    return _textures(name, lambda label, rng: patterns[label] + rng.normal(0, NOISE, TEXTURE_SIZES))


def _shape(label: int, rng: np.random.Generator) -> NDArray[np.uint8]:
    """A coloured shape, uint8 (3, 64, 64)."""
    shape, (background, colour) = SHAPES[label], _colours(rng)
    side = SIDE * OVERSAMPLING
    radius = side * rng.uniform(*RADIUS)
    centre, angle = rng.uniform(radius, side - radius, 2), rng.uniform(0, 2 * math.pi)
    canvas = Image.new("RGB", (side, side), background)
    draw = ImageDraw.Draw(canvas)
    draw.polygon(_corners(shape, centre, radius, angle), fill=colour)
    if shape == "ring":
        draw.polygon(_corners(shape, centre, radius * rng.uniform(0.5, 0.75), angle), fill=background)
    pixels = np.asarray(canvas.resize((SIDE, SIDE), Image.Resampling.BOX), np.float64)  # (H, W, C)
    noisy = pixels + rng.normal(0, rng.uniform(0, SHAPE_NOISE), pixels.shape)
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
