"""Drawings of none of a dataset's classes, as its models read pictures.

In: a dataset. Out: uint8 (n, C, H, W). A training on some of them gives such pictures little evidence for any class
(Hendrycks, Mazeika and Dietterich, "Deep Anomaly Detection with Outlier Exposure", 2019). Other drawings judge it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from common.background_and_fill import same_background
from models.data.dataset import DIGITS, Dataset
from models.data.drawn_digits import drawn
from models.data.not_digits import TRAINED, not_digits

NO_CLASS = -1  # label of a training image whose target is every class alike


def with_outliers(dataset: Dataset, count: int) -> Dataset:
    """Adds `count` letters and shapes without a class to the training part."""
    images = _as_read(not_digits(count, forms=TRAINED, scribbled=0), dataset)
    return dataset.with_more(images, np.full(count, NO_CLASS))


def judging_outliers(dataset: Dataset, count: int) -> NDArray[np.uint8]:
    """Letters and shapes that no training sees, and scribbles; half are digits where the dataset has other classes."""
    if dataset.labels == DIGITS:
        return _as_read(not_digits(count), dataset)
    return _as_read(np.concatenate((not_digits(count // 2), drawn(count // 2)[0])), dataset)


def _as_read(images: NDArray[np.uint8], dataset: Dataset) -> NDArray[np.uint8]:
    """(n, 1, 28, 28) -> (n, C, H, W). For photos the drawings fill the frame."""
    channels, *size = dataset.train_images.shape[1:]
    if dataset.preprocessing == "photo":
        images = images[:, :, 3:25, 3:25]
    pictures = [np.asarray(ImageOps.pad(Image.fromarray(image), (size[1], size[0]))) for image in images[:, 0]]
    inputs: NDArray[np.uint8] = np.stack(pictures)[:, None].repeat(channels, axis=1)
    if dataset.preprocessing == "photo":
        background = same_background(dataset.train_images, dataset.train_labels)
        light = slice(None) if background == "light" else slice(0, 0) if background == "dark" else slice(0, None, 2)
        inputs[light] = np.invert(inputs[light])
    return inputs
