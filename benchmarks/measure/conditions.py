"""Digits as other pens, scanners and cameras show them.

In and out: images uint8 (n, 1, 28, 28), 255 = ink. `thinned` erodes by 3x3 pixels, `blurred` applies a Gaussian filter
of 1.2 pixels, `dimmed` halves the contrast, `noisy` adds Gaussian noise with a standard deviation of 0.2 of full ink.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from models.data import Dataset
from models.data.digits import load_digits

Pictures = NDArray[np.uint8]

BLUR = 1.2  # pixels
DIM = 0.5
NOISE = 0.2  # of full ink
SMALL = "8x8 digits"


def thinned(images: Pictures) -> Pictures:
    eroded: Pictures = ndimage.grey_erosion(images, (1, 1, 3, 3))
    return eroded


def blurred(images: Pictures) -> Pictures:
    return _as_bytes(ndimage.gaussian_filter(images.astype(np.float32), (0, 0, BLUR, BLUR)))


def dimmed(images: Pictures) -> Pictures:
    return _as_bytes(images * np.float32(DIM))


def noisy(images: Pictures) -> Pictures:
    """The same noise at every call."""
    return _as_bytes(images + np.random.default_rng(0).normal(0, 255 * NOISE, images.shape))


PENS: dict[str, Callable[[Pictures], Pictures]] = {
    "thinned 3x3": thinned,
    "blurred, sigma 1.2": blurred,
    "contrast halved": dimmed,
    "noise 0.2": noisy,
}


def conditions(data: Dataset) -> dict[str, tuple[Pictures, NDArray[np.int64]]]:
    """Name of a condition -> images and labels (n,). SMALL: scikit-learn's digits; the others: the test images."""
    digits = load_digits()
    images = np.concatenate((digits.train_images, digits.test_images))
    small = images, np.concatenate((digits.train_labels, digits.test_labels))
    changed = {name: (change(data.test_images), data.test_labels) for name, change in PENS.items()}
    return {data.name: (data.test_images, data.test_labels), SMALL: small} | changed


def _as_bytes(levels: NDArray[np.float32] | NDArray[np.float64]) -> Pictures:
    return np.clip(np.rint(levels), 0, 255).astype(np.uint8)
