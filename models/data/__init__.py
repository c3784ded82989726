"""Datasets: uint8 images (n, channels, height, width) and int64 labels (n,)."""

from models.data.by_name import DATA_DIR_HELP, DATASETS, DIGIT_SETS, load_dataset
from models.data.cifar import find_cifar10, load_cifar10
from models.data.dataset import DataError, Dataset, hold_out
from models.data.digits import load_digits
from models.data.emnist import EMNIST_PARTS, find_emnist, load_emnist, load_emnist_part
from models.data.mnist import (
    FASHION_MNIST_LABELS,
    MNIST_PARTS,
    find_fashion_mnist,
    find_mnist,
    load_fashion_mnist,
    load_mnist,
)

__all__ = [
    "DATASETS",
    "DATA_DIR_HELP",
    "DIGIT_SETS",
    "EMNIST_PARTS",
    "FASHION_MNIST_LABELS",
    "MNIST_PARTS",
    "DataError",
    "Dataset",
    "find_cifar10",
    "find_emnist",
    "find_fashion_mnist",
    "find_mnist",
    "hold_out",
    "load_cifar10",
    "load_dataset",
    "load_digits",
    "load_emnist",
    "load_emnist_part",
    "load_fashion_mnist",
    "load_mnist",
]
