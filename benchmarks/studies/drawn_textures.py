"""Draws grey pictures whose classes differ pixel by pixel: turning, moving or mixing the pictures hides the class.

Out: a `Dataset` of uint8 (n, 1, 20, 20). Each class of `weak_pattern` and `smooth_pattern` is a random pattern that is
a third as strong as the noise over it. Each class of `noise` is a strength of noise.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from models.data.dataset import Dataset

SIDE = 20  # pixels
GREY = 128.0
CLASSES = ("a", "b", "c", "d")
PATTERN, NOISE = 15.0, 50.0  # standard deviations of a pattern, and of the noise over it, of 255
STRENGTHS = (20.0, 30.0, 40.0, 50.0)  # standard deviations of the classes of `noise`, of 255
COARSE = 5  # pixels a side of a smooth pattern before it is enlarged
TRAINED, TESTED = 1200, 1000  # pictures
Draw = Callable[[int, np.random.Generator], NDArray[np.float64]]  # label -> picture (H, W), 0 = grey


def weak_pattern() -> Dataset:
    """A class is a pattern of independent dark and bright pixels."""
    patterns = np.random.default_rng(2).choice([-PATTERN, PATTERN], (len(CLASSES), SIDE, SIDE))
    return _dataset("weak-pattern", _with_noise(patterns))


def smooth_pattern() -> Dataset:
    """A class is a pattern of soft spots."""
    coarse = np.random.default_rng(2).normal(0, 1, (len(CLASSES), COARSE, COARSE)).astype(np.float32)
    smooth = np.stack([_enlarged(pattern) for pattern in coarse])
    return _dataset("smooth-pattern", _with_noise(smooth * (PATTERN / smooth.std((1, 2), keepdims=True))))


def _enlarged(pattern: NDArray[np.float32]) -> NDArray[np.float64]:
    """To (SIDE, SIDE)."""
    return np.asarray(Image.fromarray(pattern).resize((SIDE, SIDE), Image.Resampling.BICUBIC), np.float64)


def noise() -> Dataset:
    """A class is a strength of noise."""
    return _dataset("noise", lambda label, rng: rng.normal(0, STRENGTHS[label], (SIDE, SIDE)))


def _with_noise(patterns: NDArray[np.float64]) -> Draw:
    """`patterns`: (classes, SIDE, SIDE)."""
    return lambda label, rng: patterns[label] + rng.normal(0, NOISE, (SIDE, SIDE))


def _dataset(name: str, draw: Draw) -> Dataset:
    return Dataset(name, *_part(draw, TRAINED, seed=0), *_part(draw, TESTED, seed=1), CLASSES, preprocessing="photo")


def _part(draw: Draw, count: int, seed: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """`count` pictures, uint8 (count, 1, SIDE, SIDE), and their labels."""
    rng, labels = np.random.default_rng(seed), np.arange(count) % len(CLASSES)
    pixels = np.stack([GREY + draw(label, rng) for label in labels])
    return pixels.clip(0, 255).astype(np.uint8)[:, None], labels
