"""The dataset of a checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from export.equivalence import PROOF_IMAGES, NamedImages, embedded_sample, reads_digits
from models.config import ModelConfig
from models.data import DataError, Dataset, load_dataset


def own_dataset(config: ModelConfig, metrics: dict[str, Any], data_dir: Path | None, fetch: bool = True) -> Dataset:
    """Raises DataError if the dataset is missing or does not fit the model."""
    dataset = load_dataset(metrics.get("dataset", "mnist"), data_dir, fetch, config.image_size)
    expected = (config.input_shape, config.num_classes)
    if (found := (dataset.test_images.shape[1:], len(dataset.labels))) != expected:
        raise DataError(
            f"{dataset.name}: expected images {expected[0]} of {expected[1]} classes, as the model reads them, "
            f"found {found[0]} of {found[1]}"
        )
    return dataset


def own_sample(config: ModelConfig, metrics: dict[str, Any], data_dir: Path | None) -> NamedImages:
    """Raises DataError."""
    if reads_digits(config) or "dataset" not in metrics:
        return embedded_sample(config)
    dataset = own_dataset(config, metrics, data_dir, fetch=False)
    images = dataset.test_images[:PROOF_IMAGES]
    return NamedImages(np.resize(images, (PROOF_IMAGES, *config.input_shape)), dataset.name)
