"""Datasets as arrays: uint8 images (n, channels, height, width) and int64 labels (n,); of drawings, 0 = background and
255 = ink.

In: a dataset's name and, unless it is embedded or can be downloaded, where its files are. Out: a `Dataset` with a fixed
training and test part. LeCun et al., "Gradient-based learning applied to document recognition", 1998 (MNIST); Cohen et
al., "EMNIST: an extension of MNIST to handwritten letters", 2017 (its split "digits"); Xiao et al., "Fashion-MNIST: a
Novel Image Dataset for Benchmarking Machine Learning Algorithms", 2017; Alpaydin and Kaynak, "Optical Recognition of
Handwritten Digits", 1998 (the digits bundled with scikit-learn); CIFAR-10: see `models.cifar`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from models.cifar import find_cifar10, load_cifar10
from models.dataset import DIGITS, DataError, Dataset, Part, hold_out
from models.download import cache_folder, download, named_folder
from models.idx import read_part

__all__ = [
    "DATASETS",
    "DATA_DIR_HELP",
    "DIGIT_SETS",
    "EMNIST_PARTS",
    "MNIST_PARTS",
    "DataError",
    "Dataset",
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

DIGIT_SETS = ("digits", "mnist", "emnist-digits")
DATASETS = (*DIGIT_SETS, "fashion-mnist", "cifar10")
DATA_DIR_HELP = "Its files, else $MNIST_DIR, $EMNIST_DIR, $FASHION_MNIST_DIR or $CIFAR10_DIR."

MNIST_PARTS = {  # Fashion-MNIST's files have the same names
    "train images": "train-images-idx3-ubyte.gz",
    "train labels": "train-labels-idx1-ubyte.gz",
    "test images": "t10k-images-idx3-ubyte.gz",
    "test labels": "t10k-labels-idx1-ubyte.gz",
}
EMNIST_PARTS = {
    f"{part} {kind}": f"emnist-digits-{part}-{kind}-{form}-ubyte.gz"
    for part in ("train", "test")
    for kind, form in (("images", "idx3"), ("labels", "idx1"))
}
# The checksums of the files as first published; source: torchvision's datasets/mnist.py.
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


def load_dataset(name: str, data_dir: Path | None = None, fetch: bool = True) -> Dataset:
    """`digits` (embedded), or one of the others from `data_dir`, else from the folder in its environment variable.

    The variables are $MNIST_DIR, $EMNIST_DIR, $FASHION_MNIST_DIR and $CIFAR10_DIR. Where they name none, all but EMNIST
    come from the cache, into which they are downloaded; without `fetch` that raises DataError.
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
    raise DataError(f"dataset: expected one of {', '.join(DATASETS)}, found {name}")


def load_digits() -> Dataset:
    """scikit-learn's 1,797 real 8x8 digits as MNIST lays them out; a fixed fifth, drawn by seed, is the test part.

    Writers are not known, so some stand on both sides: an accuracy here says less than one on MNIST.
    """
    from scipy.ndimage import zoom
    from sklearn.datasets import load_digits as load_bundled

    bundled = load_bundled()
    images = np.stack(
        [_as_mnist(zoom(image, 2.5, order=1, grid_mode=True, mode="nearest")) for image in bundled.images]
    )
    order = np.random.default_rng(0).permutation(len(images))
    test, train = np.split(order, [len(images) // 5])
    targets = bundled.target.astype(np.int64)
    return Dataset("digits", images[train], targets[train], images[test], targets[test], DIGITS)


def _as_mnist(ink: NDArray[np.float64]) -> NDArray[np.uint8]:
    """Ink (20, 20), 0 to 16, on a (1, 28, 28) background with its centre of mass on pixel (14, 14): uint8, 0 to 255."""
    canvas = np.zeros((28, 28))
    canvas[4:24, 4:24] = np.clip(ink * (255 / 16), 0, 255)
    for axis in (0, 1):
        mass = canvas.sum(axis=1 - axis)
        centre = (mass @ np.arange(28)) / mass.sum()
        canvas = np.roll(canvas, int(np.clip(round(14 - centre), -4, 4)), axis=axis)
    return canvas.round().astype(np.uint8)[None]


def load_mnist(folder: Path) -> Dataset:
    """The four idx files of `folder`, gzipped or not; raises DataError where one is missing or not as expected."""
    train, test = (read_part(folder, MNIST_PARTS, part) for part in ("train", "test"))
    return Dataset("mnist", *train, *test, DIGITS)


def load_fashion_mnist(folder: Path) -> Dataset:
    """Fashion-MNIST from its four idx files, as `load_mnist` reads them: light garments on black."""
    train, test = (read_part(folder, MNIST_PARTS, part) for part in ("train", "test"))
    return Dataset("fashion-mnist", *train, *test, FASHION_MNIST_LABELS, "photo")


def load_emnist(folder: Path) -> Dataset:
    """EMNIST's digits, turned upright, from the four idx files of `folder`; raises DataError as `load_mnist` does."""
    return Dataset("emnist-digits", *load_emnist_part(folder, "train"), *load_emnist_part(folder, "test"), DIGITS)


def load_emnist_part(folder: Path, part: Literal["train", "test"]) -> Part:
    """One part alone: images (n, 1, H, W) and labels (n,). The files hold each image transposed."""
    images, labels = read_part(folder, EMNIST_PARTS, part)
    return np.ascontiguousarray(images.swapaxes(2, 3)), labels


def find_mnist(data_dir: Path | None, fetch: bool = True) -> Path:
    """The folder with MNIST: the one named, else $MNIST_DIR, else the cache, into which it is downloaded if need be."""
    return _find("mnist", data_dir, "MNIST_DIR", MNIST_CHECKSUMS, MNIST_MIRRORS, fetch)


def find_fashion_mnist(data_dir: Path | None, fetch: bool = True) -> Path:
    """The folder with Fashion-MNIST: the one named, else $FASHION_MNIST_DIR, else the cache, as with MNIST."""
    checksums, mirrors = FASHION_MNIST_CHECKSUMS, FASHION_MNIST_MIRRORS
    return _find("fashion-mnist", data_dir, "FASHION_MNIST_DIR", checksums, mirrors, fetch)


def _find(
    name: str, data_dir: Path | None, variable: str, checksums: dict[str, str], mirrors: tuple[str, ...], fetch: bool
) -> Path:
    """The folder with the four idx files of one dataset; without `fetch` DataError where the cache lacks one."""
    if named := named_folder(data_dir, variable):
        return named
    cache = cache_folder(name)
    if fetch:
        files = f"Put its four idx files in a folder and name it: --data-dir DIR or {variable}"
        download(checksums, mirrors, cache, files)
    elif not all((cache / file).is_file() for file in checksums):
        raise DataError(f"{name}: expected its four idx files in --data-dir, {variable} or {cache}, found none")
    return cache


def find_emnist(data_dir: Path | None) -> Path:
    """The folder with EMNIST: the one named, else $EMNIST_DIR. Raises DataError where neither is there.

    It is not downloaded: it comes as one archive of half a gigabyte, of which the digits are a part.
    """
    named = named_folder(data_dir, "EMNIST_DIR")
    if named is None:
        files = ", ".join(EMNIST_PARTS.values())
        raise DataError(f"emnist-digits: expected a folder with {files} in --data-dir or EMNIST_DIR, found neither")
    return named
