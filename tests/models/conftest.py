"""Small folders that look like the real datasets."""

import struct
from pathlib import Path

import numpy as np
import pytest


def write_idx(path: Path, array: np.ndarray) -> None:
    """An idx file of unsigned bytes."""
    header = b"\x00\x00\x08" + struct.pack(f">B{array.ndim}I", array.ndim, *array.shape)
    path.write_bytes(header + array.astype(np.uint8).tobytes())


@pytest.fixture(scope="session")
def small_mnist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with MNIST's four files, in them 120 of scikit-learn's digits to train on and 40 to test on."""
    from models.data import MNIST_PARTS, load_digits

    digits, folder = load_digits(), tmp_path_factory.mktemp("small mnist")
    arrays = {
        "train images": digits.train_images[:120, 0],
        "train labels": digits.train_labels[:120],
        "test images": digits.test_images[:40, 0],
        "test labels": digits.test_labels[:40],
    }
    for part, array in arrays.items():
        write_idx(folder / MNIST_PARTS[part].removesuffix(".gz"), array)
    return folder


@pytest.fixture(scope="session")
def small_emnist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the test part of EMNIST's digits: the 40 test images of `small_mnist`, transposed as published."""
    from models.data import EMNIST_PARTS, load_digits

    digits, folder = load_digits(), tmp_path_factory.mktemp("small emnist")
    write_idx(folder / EMNIST_PARTS["test images"].removesuffix(".gz"), digits.test_images[:40, 0].swapaxes(1, 2))
    write_idx(folder / EMNIST_PARTS["test labels"].removesuffix(".gz"), digits.test_labels[:40])
    return folder
