"""The dataset that a checkpoint learned from: what its export is proved, calibrated and measured on.

In: what the checkpoint says of itself. Out: that dataset, or a sample of its test images; or DataError.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from export.equivalence import PROOF_IMAGES, Sample, embedded_sample, reads_digits
from models.config import ModelConfig
from models.data import DataError, Dataset, load_dataset


def own_dataset(config: ModelConfig, metrics: dict[str, Any], data_dir: Path | None, fetch: bool = True) -> Dataset:
    """The dataset named in a checkpoint's `metrics`, MNIST where none is; it is downloaded only with `fetch`.

    Raises DataError where it is not to be had, or shows other images or classes than the model's.
    """
    dataset = load_dataset(metrics.get("dataset", "mnist"), data_dir, fetch)
    expected = (config.input_shape, config.num_classes)
    if (found := (dataset.test_images.shape[1:], len(dataset.labels))) != expected:
        raise DataError(
            f"{dataset.name}: expected images {expected[0]} of {expected[1]} classes, as the model reads them, "
            f"found {found[0]} of {found[1]}"
        )
    return dataset


def own_sample(config: ModelConfig, metrics: dict[str, Any], data_dir: Path | None) -> Sample:
    """Test images of the checkpoint's own dataset; of digits, those that are embedded.

    Nothing is downloaded: raises DataError where they are not at hand.
    """
    if reads_digits(config) or "dataset" not in metrics:
        return embedded_sample(config)
    dataset = own_dataset(config, metrics, data_dir, fetch=False)
    images = dataset.test_images[:PROOF_IMAGES]
    return Sample(np.resize(images, (PROOF_IMAGES, *config.input_shape)), dataset.name)
