"""Datasets: uint8 images (n, channels, height, width) and int64 labels (n,)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from models.data.cifar import find_cifar10, load_cifar10
from models.data.dataset import DataError, Dataset, hold_out
from models.data.digits import load_digits
from models.data.mnist import FASHION_MNIST_LABELS, IDX_SETS, find_idx, load_idx, load_idx_part
from models.data.split import Record

__all__ = [
    "DATASETS",
    "DATA_DIR_HELP",
    "DIGIT_SETS",
    "FASHION_MNIST_LABELS",
    "DataError",
    "Dataset",
    "Record",
    "find_idx",
    "hold_out",
    "load_again",
    "load_cifar10",
    "load_dataset",
    "load_digits",
    "load_idx_part",
]

DIGIT_SETS = ("digits", "mnist", "emnist-digits")
DATASETS = ("digits", *IDX_SETS, "cifar10")
DATA_DIR_HELP = f"Its files, else {', '.join(f'${each.variable}' for each in IDX_SETS.values())} or $CIFAR10_DIR."


def load_dataset(
    name: str,
    data_dir: Path | None = None,
    fetch: bool = True,
    image_size: tuple[int, int] | None = None,
    held_out: int | None = None,
    record: Record | None = None,
) -> Dataset:
    """Reads `data_dir`, else the folder in the dataset's environment variable, else Debian's package, else the cache.
    `fetch` downloads what the cache lacks, except EMNIST.

    Any other `name` is a folder of pictures; `data_dir` says where it is now. Only a folder uses `image_size`,
    `held_out` and `record`, the pictures of an earlier training. Raises DataError.
    """
    folder = data_dir if name in DATASETS else data_dir or Path(name)
    if name in DATASETS:
        dataset = _load(name, folder, fetch)
    else:
        dataset = _load_folder(name, folder, image_size, held_out, record)
    return replace(dataset, folder=str(folder.absolute())) if folder else dataset


def _load(name: str, folder: Path | None, fetch: bool) -> Dataset:
    if name == "digits":
        return load_digits()
    if name in IDX_SETS:
        return load_idx(name, find_idx(name, folder, fetch))
    return load_cifar10(find_cifar10(folder, fetch))


def _load_folder(
    name: str, folder: Path | None, image_size: tuple[int, int] | None, held_out: int | None, record: Record | None
) -> Dataset:
    if folder is None or not folder.is_dir():
        found = "a file" if folder and folder.is_file() else "no such folder"
        if record:
            raise DataError(f"{folder}: expected the training's pictures, found {found}; --data-dir names their folder")
        raise DataError(f"{folder}: expected one of {', '.join(DATASETS)}, or a folder of pictures, found {found}")
    from models.data.folder import load_folder

    return replace(load_folder(folder, image_size, held_out, record), name=name)


def load_again(
    metrics: Mapping[str, Any], data_dir: Path | None, fetch: bool = True, image_size: tuple[int, int] | None = None
) -> Dataset:
    """The dataset that a training's `metrics` name; without `data_dir`, from the folder that the training used.

    A folder gives the training's pictures, each in the same part. Raises DataError if pictures are missing or changed.
    """
    then = Path(metrics.get("data_dir", ""))
    remembered = then if then.is_absolute() and then.is_dir() else None
    name, record = metrics.get("dataset", "mnist"), metrics.get("pictures")
    dataset = load_dataset(name, data_dir or remembered, fetch, image_size, record=record)
    counts = len(dataset.test_labels), metrics.get("test_images")
    if name not in DATASETS and not record and counts[1] not in (None, counts[0]):
        raise DataError(
            f"{name}: expected the {counts[1]} test pictures of the training, whose checkpoint does not name them, "
            f"found {counts[0]}; train again"
        )
    return dataset
