"""scikit-learn's 1,797 digits, 8x8, laid out like MNIST's: grey, 28x28.

Alpaydin and Kaynak, "Optical Recognition of Handwritten Digits", 1998.
"""

from __future__ import annotations

from functools import cache
from importlib.metadata import distribution

import numpy as np
from numpy.typing import NDArray

from models.data.dataset import DIGITS, Dataset


def load_digits() -> Dataset:
    """A fixed fifth is the test part. Some writers are in both parts, so accuracy says less than on MNIST."""
    images, targets = _enlarged()
    order = np.random.default_rng(0).permutation(len(images))
    test, train = np.split(order, [len(images) // 5])
    return Dataset("digits", images[train], targets[train], images[test], targets[test], DIGITS)  # copies


@cache
def _enlarged() -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Images (1797, 1, 28, 28) and labels. Cached: every export needs them twice."""
    from scipy.ndimage import zoom

    small, labels = bundled()
    images = [as_mnist(image) for image in zoom(small, (1, 2.5, 2.5), order=1, grid_mode=True, mode="nearest")]
    return np.stack(images), labels


def bundled() -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Images (1797, 8, 8) of 17 greys and labels, from the file: importing scikit-learn takes seconds."""
    path = distribution("scikit-learn").locate_file("sklearn/datasets/data/digits.csv.gz")
    table = np.loadtxt(str(path), delimiter=",")  # (1797, 64 + 1)
    return table[:, :-1].reshape(-1, 8, 8), table[:, -1].astype(np.int64)


def as_mnist(ink: NDArray[np.float64]) -> NDArray[np.uint8]:
    """Centres the mass of ink (20, 20), 0 to 16, on pixel (14, 14) of uint8 (1, 28, 28), 0 to 255."""
    canvas = np.zeros((28, 28))
    canvas[4:24, 4:24] = np.clip(ink * (255 / 16), 0, 255)
    for axis in (0, 1):
        mass = canvas.sum(axis=1 - axis)
        centre = (mass @ np.arange(28)) / mass.sum()
        canvas = np.roll(canvas, int(np.clip(round(14 - centre), -4, 4)), axis=axis)
    return canvas.round().astype(np.uint8)[None]
