"""The images on which a network is compared and measured.

In: the network's configuration, and the metrics of its training, which name its dataset. Out: that dataset; or 64
images: of that dataset, of the digits that come with the project, or of noise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from export.compare_logits import Images
from models.data import DataError, Dataset, load_again, load_digits
from models.networks.config import ModelConfig

COUNT = 64
DIGIT_SHAPE = (1, 28, 28)


@dataclass(frozen=True)
class NamedImages:
    """Images uint8 (64, C, H, W). `of`: their source, a dataset's name or "noise".

    `note`: why they are not of the dataset that the network was trained on; None if they are.
    """

    images: Images
    of: str
    note: str | None = None


def embedded_sample(config: ModelConfig) -> NamedImages:
    """64 images without a download, the same on every machine: digits, or noise for networks of another input shape."""
    if config.input_shape == DIGIT_SHAPE:
        return NamedImages(load_digits().test_images[:COUNT], "digits")
    noise = np.random.default_rng(0).integers(0, 256, (COUNT, *config.input_shape), np.uint8)
    return NamedImages(noise, "noise")


def own_sample(config: ModelConfig, metrics: Mapping[str, Any], data_dir: Path | None) -> NamedImages:
    """64 test images of the dataset that the network was trained on, from the folder `data_dir`.

    Networks of digits, and networks whose metrics name no dataset, get `embedded_sample`. Downloads nothing. Raises
    DataError if the dataset is missing or does not fit the model.
    """
    reads_digits = config.preprocessing == "ink" and config.input_shape == DIGIT_SHAPE
    if reads_digits or "dataset" not in metrics:
        return embedded_sample(config)
    dataset = own_dataset(config, metrics, data_dir, fetch=False)
    return NamedImages(np.resize(dataset.test_images[:COUNT], (COUNT, *config.input_shape)), dataset.name)


def own_dataset(config: ModelConfig, metrics: Mapping[str, Any], data_dir: Path | None, fetch: bool = True) -> Dataset:
    """The dataset that the network was trained on. `fetch`: whether to download what is not there.

    Raises DataError if the dataset is missing or does not fit the model.
    """
    dataset = load_again(metrics, data_dir, fetch, config.image_size)
    shape, classes = dataset.test_images.shape[1:], len(dataset.labels)
    if (shape, classes) != (config.input_shape, config.num_classes):
        raise DataError(
            f"{dataset.name}: expected images {config.input_shape} of {config.num_classes} classes, "
            f"as the model reads them, found {shape} of {classes}"
        )
    if dataset.labels != config.labels:
        raise DataError(
            f"{dataset.name}: expected the model's classes, {', '.join(config.labels)}, "
            f"found {', '.join(dataset.labels)}"
        )
    return dataset
