"""MNIST, and Fashion-MNIST in files of the same names: 60,000 training and 10,000 test images, grey, 28x28.

In: a folder with the four idx files. Out: a `Dataset`; or DataError.
LeCun et al., "Gradient-based learning", 1998; Xiao et al., "Fashion-MNIST", 2017.
"""

from __future__ import annotations

from pathlib import Path

from models.data.dataset import DIGITS, DataError, Dataset
from models.data.download import cache_folder, download, named_folder
from models.data.idx import read_part

MNIST_PARTS = {
    "train images": "train-images-idx3-ubyte.gz",
    "train labels": "train-labels-idx1-ubyte.gz",
    "test images": "t10k-images-idx3-ubyte.gz",
    "test labels": "t10k-labels-idx1-ubyte.gz",
}
# As first published; source: torchvision's datasets/mnist.py.
MNIST_CHECKSUMS = {
    "train-images-idx3-ubyte.gz": "md5:f68b3c2dcbeaaa9fbdd348bbdeb94873",
    "train-labels-idx1-ubyte.gz": "md5:d53e105ee54ea40749a09fcbcd1e9432",
    "t10k-images-idx3-ubyte.gz": "md5:9fb629c4189551a2d022fa330f9573f3",
    "t10k-labels-idx1-ubyte.gz": "md5:ec29112dd5afa0611ce80d1b7f02629c",
}
MNIST_MIRRORS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
)
# As published: https://github.com/zalandoresearch/fashion-mnist.
FASHION_MNIST_CHECKSUMS = {
    "train-images-idx3-ubyte.gz": "md5:8d4fb7e6c68d591d4c3dfef9ec88bf0d",
    "train-labels-idx1-ubyte.gz": "md5:25c81989df183df01b3e8a0aad5dffbe",
    "t10k-images-idx3-ubyte.gz": "md5:bef4ecab320f06d8554ea6380940ec79",
    "t10k-labels-idx1-ubyte.gz": "md5:bb300cfdad3c16e7a12a480ee83cd310",
}
FASHION_MNIST_MIRRORS = ("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",)
FASHION_MNIST_LABELS = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)


def load_mnist(folder: Path) -> Dataset:
    train, test = (read_part(folder, MNIST_PARTS, part, len(DIGITS)) for part in ("train", "test"))
    return Dataset("mnist", *train, *test, DIGITS)


def load_fashion_mnist(folder: Path) -> Dataset:
    train, test = (read_part(folder, MNIST_PARTS, part, len(FASHION_MNIST_LABELS)) for part in ("train", "test"))
    return Dataset("fashion-mnist", *train, *test, FASHION_MNIST_LABELS, "photo")


def find_mnist(data_dir: Path | None, fetch: bool = True) -> Path:
    return _find("mnist", data_dir, "MNIST_DIR", MNIST_CHECKSUMS, MNIST_MIRRORS, fetch)


def find_fashion_mnist(data_dir: Path | None, fetch: bool = True) -> Path:
    checksums, mirrors = FASHION_MNIST_CHECKSUMS, FASHION_MNIST_MIRRORS
    return _find("fashion-mnist", data_dir, "FASHION_MNIST_DIR", checksums, mirrors, fetch)


def _find(
    name: str, data_dir: Path | None, variable: str, checksums: dict[str, str], mirrors: tuple[str, ...], fetch: bool
) -> Path:
    if folder := named_folder(data_dir, variable):
        return folder
    cache = cache_folder(name)
    if fetch:
        download(checksums, mirrors, cache, f"Put its four idx files in a folder: --data-dir DIR or {variable}")
    elif not all((cache / file).is_file() for file in checksums):
        raise DataError(f"{name}: expected its four idx files in --data-dir, {variable} or {cache}, found none")
    return cache
