from __future__ import annotations

from pathlib import Path

from models.data.cifar import find_cifar10, load_cifar10
from models.data.dataset import DataError, Dataset
from models.data.digits import load_digits
from models.data.emnist import find_emnist, load_emnist
from models.data.mnist import find_fashion_mnist, find_mnist, load_fashion_mnist, load_mnist

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
    """From `data_dir`, else the folder in its environment variable, else the cache, which `fetch` fills (not EMNIST's).

    Any other `name` is a folder of pictures; only it uses `image_size` and `held_out`. Raises DataError.
    """
    if name == "digits":
        return load_digits()
    if name == "mnist":
        return load_mnist(find_mnist(data_dir, fetch))
    if name == "emnist-digits":
        return load_emnist(find_emnist(data_dir))
    if name == "fashion-mnist":
        return load_fashion_mnist(find_fashion_mnist(data_dir, fetch))
    if name == "cifar10":
        return load_cifar10(find_cifar10(data_dir, fetch))
    if not Path(name).is_dir():
        raise DataError(f"dataset: expected one of {', '.join(DATASETS)}, or a folder of pictures, found {name}")
    from models.data.folder import SIDE, load_folder

    return load_folder(Path(name), image_size or (SIDE, SIDE), held_out)
