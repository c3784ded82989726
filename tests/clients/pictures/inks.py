"""Sources of ink: uint8 (n, 224, 224), 255 = ink, and labels (n,). Raise DataError if they have fewer images."""

from __future__ import annotations

import numpy as np
from PIL import Image

from models.data import DataError, Dataset
from models.data.digits import bundled
from pictures.parts import Array
from pictures.strokes import SIDE, draw_strokes


def strokes(count: int) -> tuple[Array, Array]:
    return draw_strokes(count, seed=1)


def scikit_learn(count: int) -> tuple[Array, Array]:
    small, labels = bundled()
    _check("scikit-learn", count, len(labels))
    images = (small[:count] * (255 / 16)).astype(np.uint8)
    box = SIDE * 20 // 28
    edge = (SIDE - box) // 2
    inks = [Image.fromarray(image).resize((box, box), Image.Resampling.BICUBIC) for image in images]
    return np.stack([np.pad(np.asarray(ink), edge) for ink in inks]), labels[:count]


def test_images(data: Dataset, count: int) -> tuple[Array, Array]:
    """Spread over all test images: uint8 (n, 28, 28), and labels."""
    _check(data.name, count, len(data.test_labels))
    chosen = np.linspace(0, len(data.test_labels) - 1, count).astype(int)
    return data.test_images[chosen, 0], data.test_labels[chosen]


def enlarged(images: Array) -> Array:
    """uint8 (n, 28, 28) -> ink uint8 (n, 224, 224)."""
    large = (Image.fromarray(image).resize((SIDE, SIDE), Image.Resampling.BICUBIC) for image in images)
    return np.stack([np.asarray(image) for image in large])


def _check(source: str, wanted: int, there: int) -> None:
    if wanted > there:
        raise DataError(f"{source}: expected {wanted} images or more, found {there}")
