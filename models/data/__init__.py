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

__all__ = [
    "DATASETS",
    "DATA_DIR_HELP",
    "DIGIT_SETS",
    "FASHION_MNIST_LABELS",
    "DataError",
    "Dataset",
    "find_idx",
    "hold_out",
    "load_again",
    "load_cifar10",
    "load_dataset",
    "load_digits",
    "load_idx_part",
]

DIGIT_SETS = ("digits", "mnist", "emnist-digits")
DATASETS = (*DIGIT_SETS, "fashion-mnist", "cifar10")
DATA_DIR_HELP = "Its files, else $MNIST_DIR, $EMNIST_DIR, $FASHION_MNIST_DIR or $CIFAR10_DIR."


def load_dataset(
    name: str,
    data_dir: Path | None = None,
    fetch: bool = True,
    image_size: tuple[int, int] | None = None,
    held_out: int = 0,
) -> Dataset:
    """From `data_dir`, else the folder in its environment variable, else Debian's package, else the cache, which
    `fetch` fills (not EMNIST's).

    Any other `name` is a folder of pictures, which may be in `data_dir` now; only it uses `image_size` and `held_out`.
    Raises DataError.
    """
    folder = data_dir if name in DATASETS else data_dir or Path(name)
    dataset = _load(name, folder, fetch, image_size, held_out)
    return replace(dataset, folder=str(folder.absolute())) if folder else dataset


def _load(name: str, folder: Path | None, fetch: bool, image_size: tuple[int, int] | None, held_out: int) -> Dataset:
    if name == "digits":
        return load_digits()
    if name in IDX_SETS:
        return load_idx(name, find_idx(name, folder, fetch))
    if name == "cifar10":
        return load_cifar10(find_cifar10(folder, fetch))
    if folder is None or not folder.is_dir():
        raise DataError(f"dataset: expected one of {', '.join(DATASETS)}, or a folder of pictures, found {folder}")
    from models.data.folder import SIDE, load_folder

    return replace(load_folder(folder, image_size or (SIDE, SIDE), held_out), name=name)


def load_again(
    metrics: Mapping[str, Any], data_dir: Path | None, fetch: bool = True, image_size: tuple[int, int] | None = None
) -> Dataset:
    """The dataset that a training's `metrics` name; without `data_dir` from the folder where it was then."""
    then = Path(metrics.get("data_dir", ""))
    remembered = then if then.is_absolute() and then.is_dir() else None
    return load_dataset(metrics.get("dataset", "mnist"), data_dir or remembered, fetch, image_size)
