"""Datasets: uint8 images (n, channels, height, width) and int64 labels (n,)."""

from __future__ import annotations

from pathlib import Path

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

    Any other `name` is a folder of pictures; only it uses `image_size` and `held_out`. Raises DataError.
    """
    if name == "digits":
        return load_digits()
    if name in IDX_SETS:
        return load_idx(name, find_idx(name, data_dir, fetch))
    if name == "cifar10":
        return load_cifar10(find_cifar10(data_dir, fetch))
    if not Path(name).is_dir():
        raise DataError(f"dataset: expected one of {', '.join(DATASETS)}, or a folder of pictures, found {name}")
    from models.data.folder import SIDE, load_folder

    return load_folder(Path(name), image_size or (SIDE, SIDE), held_out)
