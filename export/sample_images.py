"""The images on which a network is compared and measured.

In: its configuration and the metrics of its training. Out: the dataset; or 64 images of it, of digits or of noise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from export.equivalence import Images
from models.data import DataError, Dataset, load_again, load_digits
from models.networks.config import ModelConfig

COUNT = 64
DIGIT_SHAPE = (1, 28, 28)


@dataclass(frozen=True)
class NamedImages:
    """Images uint8 (64, C, H, W) and their source: a dataset's name, or noise. `note`: why not the network's own."""

    images: Images
    of: str
    note: str | None = None


def embedded_sample(config: ModelConfig) -> NamedImages:
    """The same on every machine."""
    if config.input_shape == DIGIT_SHAPE:
        return NamedImages(load_digits().test_images[:COUNT], "digits")
    noise = np.random.default_rng(0).integers(0, 256, (COUNT, *config.input_shape), np.uint8)
    return NamedImages(noise, "noise")


def own_sample(config: ModelConfig, metrics: Mapping[str, Any], data_dir: Path | None) -> NamedImages:
    """Raises DataError."""
    reads_digits = config.preprocessing == "ink" and config.input_shape == DIGIT_SHAPE
    if reads_digits or "dataset" not in metrics:
        return embedded_sample(config)
    dataset = own_dataset(config, metrics, data_dir, fetch=False)
    return NamedImages(np.resize(dataset.test_images[:COUNT], (COUNT, *config.input_shape)), dataset.name)


def own_dataset(config: ModelConfig, metrics: Mapping[str, Any], data_dir: Path | None, fetch: bool = True) -> Dataset:
    """Raises DataError if the dataset is missing or does not fit the model."""
    dataset = load_again(metrics, data_dir, fetch, config.image_size)
    expected = (config.input_shape, config.num_classes)
    if (found := (dataset.test_images.shape[1:], len(dataset.labels))) != expected:
        raise DataError(
            f"{dataset.name}: expected images {expected[0]} of {expected[1]} classes, as the model reads them, "
            f"found {found[0]} of {found[1]}"
        )
    if dataset.labels != config.labels:
        raise DataError(
            f"{dataset.name}: expected the model's classes, {', '.join(config.labels)}, "
            f"found {', '.join(dataset.labels)}"
        )
    return dataset
