"""The class of all datasets: images and labels, and how to train on them and to prepare pictures like them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from common.background_and_fill import background_and_fill
from common.preprocessing_settings import Preprocessing
from models.networks.config import ModelConfig, ModelName

DIGITS = tuple("0123456789")

Part = tuple[NDArray[np.uint8], NDArray[np.int64]]  # images and labels


class DataError(Exception):
    pass


@dataclass(frozen=True)
class Dataset:
    """Images uint8 (n, C, H, W) and labels int64 (n,).

    - `preprocessing`: how clients turn a picture into such an image.
    - `patch_size`: the usual patch for these images; height, width in pixels.
    - `load_options`: the options of `train` that load the dataset again.
    - `folder`: as the user named it, else "".
    - `held`: training images kept apart, by which a training chooses the epoch to keep.
    - `pictures`: the record of the split (models/data/split.py), for a folder of pictures.
    - `notes`: lines for the user on the files, such as which were left out.
    - `test_files`: paths of the test images in the folder.
    """

    name: str
    train_images: NDArray[np.uint8]
    train_labels: NDArray[np.int64]
    test_images: NDArray[np.uint8]
    test_labels: NDArray[np.int64]
    labels: tuple[str, ...]
    preprocessing: Preprocessing = "ink"
    patch_size: tuple[int, int] = (7, 7)
    load_options: str = ""
    folder: str = ""
    held: Part | None = None
    pictures: Mapping[str, Mapping[str, str]] | None = None
    notes: tuple[str, ...] = ()
    test_files: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        train, test = self.train_images.shape[1:], self.test_images.shape[1:]
        if train != test:
            raise DataError(f"{self.name}: expected training and test images of one shape, found {train} and {test}")

    @property
    def image_size(self) -> str:
        """Width and height in pixels, as users read them."""
        return f"{self.train_images.shape[3]}x{self.train_images.shape[2]}"

    def first(self, train: int | None = None, test: int | None = None) -> Dataset:
        """A dataset with only the first images of each part; None: all images."""
        return replace(
            self,
            train_images=self.train_images[:train],
            train_labels=self.train_labels[:train],
            test_images=self.test_images[:test],
            test_labels=self.test_labels[:test],
            test_files=self.test_files[:test],
        )

    def with_more(self, images: NDArray[np.uint8], labels: NDArray[np.int64]) -> Dataset:
        """A dataset with these images to train on, too."""
        return replace(
            self,
            train_images=np.concatenate((self.train_images, images)),
            train_labels=np.concatenate((self.train_labels, labels)),
        )

    def model_config(self, model: ModelName, depth: int) -> ModelConfig:
        channels, height, width = self.train_images.shape[1:]
        return ModelConfig(
            model=model,
            image_size=(height, width),
            patch_size=self.patch_size,
            channels=channels,
            num_classes=len(self.labels),
            depth=depth,
            labels=self.labels,
            preprocessing=self.preprocessing,
            **(background_and_fill(self.train_images, self.train_labels) if self.preprocessing == "photo" else {}),
        )


def hold_out(dataset: Dataset, count: int) -> Dataset:
    """A dataset whose test part is held-out training images: a folder's `held`, else `count`, always the same.

    Raises DataError.
    """
    if dataset.held is not None:
        return replace(dataset, test_images=dataset.held[0], test_labels=dataset.held[1], held=None, test_files=())
    total = len(dataset.train_labels)
    if not 1 <= count <= total - 2:
        raise DataError(f"{dataset.name}: expected to hold out 1 to {total - 2} of {total} images, found {count}")
    held, kept = np.split(np.random.default_rng(0).permutation(total), [count])
    images, labels = dataset.train_images, dataset.train_labels
    return replace(
        dataset,
        train_images=images[kept],
        train_labels=labels[kept],
        test_images=images[held],
        test_labels=labels[held],
    )
