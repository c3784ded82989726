"""Datasets as arrays: uint8 images (n, channels, height, width), 0 = background, 255 = ink, and int64 labels (n,).

In: a dataset's name and, for MNIST and EMNIST, where their four idx files are. Out: a `Dataset` with a fixed training
and test part. LeCun et al., "Gradient-based learning applied to document recognition", 1998 (MNIST and the idx format);
Cohen et al., "EMNIST: an extension of MNIST to handwritten letters", 2017 (its split "digits"); Alpaydin and Kaynak,
"Optical Recognition of Handwritten Digits", 1998 (the digits bundled with scikit-learn).
"""

from __future__ import annotations

import gzip
import math
import os
import struct
import zlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

DATASETS = ("digits", "mnist", "emnist-digits")

MNIST_PARTS = {
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
MAX_IDX_BYTES = 1 << 30  # a gzip file may claim any size; MNIST's largest part is 47 MB


class DataError(Exception):
    """Data that cannot be had or read; the message names the file, what was expected and what was found."""


@dataclass(frozen=True)
class Dataset:
    """Images uint8 (n, C, H, W) and labels int64 (n,) in two parts, with the names of the classes."""

    name: str
    train_images: NDArray[np.uint8]
    train_labels: NDArray[np.int64]
    test_images: NDArray[np.uint8]
    test_labels: NDArray[np.int64]
    labels: tuple[str, ...]


def load_dataset(name: str, data_dir: Path | None = None) -> Dataset:
    """`digits` (embedded), `mnist` (from `data_dir`, else $MNIST_DIR, else the cache, else downloaded) or
    `emnist-digits` (from `data_dir`, else $EMNIST_DIR).
    """
    if name == "digits":
        return load_digits()
    if name == "mnist":
        return load_mnist(find_mnist(data_dir))
    if name == "emnist-digits":
        return load_emnist(find_emnist(data_dir))
    raise DataError(f"dataset: expected one of {', '.join(DATASETS)}, found {name}")


def hold_out(dataset: Dataset, count: int) -> Dataset:
    """The training part alone, `count` of its images, always the same, in the place of the test part.

    Raises DataError where fewer than two images would be left to train on.
    """
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
    return Dataset("digits", images[train], targets[train], images[test], targets[test], tuple("0123456789"))


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
    train, test = (_idx_part(folder, MNIST_PARTS, part) for part in ("train", "test"))
    return Dataset("mnist", *train, *test, tuple("0123456789"))


def load_emnist(folder: Path) -> Dataset:
    """EMNIST's digits, turned upright, from the four idx files of `folder`; raises DataError as `load_mnist` does."""
    return Dataset(
        "emnist-digits", *load_emnist_part(folder, "train"), *load_emnist_part(folder, "test"), tuple("0123456789")
    )


def load_emnist_part(folder: Path, part: Literal["train", "test"]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """One part alone: images (n, 1, H, W) and labels (n,). The files hold each image transposed."""
    images, labels = _idx_part(folder, EMNIST_PARTS, part)
    return np.ascontiguousarray(images.swapaxes(2, 3)), labels


def _idx_part(folder: Path, names: dict[str, str], part: str) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Images (n, 1, H, W) and labels (n,) of the two files of one part."""
    images, labels = (read_idx(_idx_file(folder, names[f"{part} {kind}"])) for kind in ("images", "labels"))
    if images.ndim != 3 or labels.ndim != 1 or len(images) != len(labels) or len(images) == 0:
        raise DataError(
            f"{folder}: expected {part} images (n, height, width) and as many labels, "
            f"found {images.shape} and {labels.shape}"
        )
    return images[:, None], labels.astype(np.int64)


def read_idx(path: Path) -> NDArray[np.uint8]:
    """The array in an idx file of unsigned bytes, gzipped or not.

    Raises DataError for a wrong magic number, a truncated file, or bytes left over.
    """
    try:
        with path.open("rb") as raw:
            zipped = raw.read(2) == b"\x1f\x8b"
            raw.seek(0)
            data = gzip.GzipFile(fileobj=raw).read(MAX_IDX_BYTES) if zipped else raw.read(MAX_IDX_BYTES)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: expected an idx file, found {error}") from error
    if len(data) < 4 or data[:3] != b"\x00\x00\x08" or not 1 <= data[3] <= 4:
        raise DataError(
            f"{path}: expected the idx magic 000008 and 1 to 4 dimensions, found {data[:4].hex() or 'nothing'}"
        )
    start = 4 + 4 * data[3]
    if len(data) < start:
        raise DataError(f"{path}: expected an idx header of {start} bytes, found {len(data)}")
    shape = struct.unpack(f">{data[3]}I", data[4:start])
    if len(data) - start != math.prod(shape):
        raise DataError(f"{path}: expected {math.prod(shape)} bytes for {shape}, found {len(data) - start}")
    return np.frombuffer(data, np.uint8, offset=start).reshape(shape)


def find_mnist(data_dir: Path | None) -> Path:
    """The folder with MNIST: the one named, else $MNIST_DIR, else the cache, into which it is downloaded if need be."""
    named = data_dir or (Path(os.environ["MNIST_DIR"]) if os.environ.get("MNIST_DIR") else None)
    if named is not None:
        return named
    import pooch

    cache = Path(pooch.os_cache("vitbn")) / "mnist"
    download(MNIST_CHECKSUMS, MNIST_MIRRORS, cache)
    return cache


def find_emnist(data_dir: Path | None) -> Path:
    """The folder with EMNIST: the one named, else $EMNIST_DIR. Raises DataError where neither is there.

    It is not downloaded: it comes as one archive of half a gigabyte, of which the digits are a part.
    """
    named = data_dir or (Path(os.environ["EMNIST_DIR"]) if os.environ.get("EMNIST_DIR") else None)
    if named is None:
        files = ", ".join(EMNIST_PARTS.values())
        raise DataError(f"emnist-digits: expected a folder with {files} in --data-dir or EMNIST_DIR, found neither")
    return named


def download(checksums: dict[str, str], mirrors: tuple[str, ...], folder: Path) -> None:
    """Fetches each file that `folder` lacks from the first mirror that answers, with a progress bar, and checks it.

    Raises DataError when no mirror gives a file with the right checksum.
    """
    import pooch
    import requests

    pooch.get_logger().setLevel("ERROR")  # one line of ours instead of several of its own
    for name, checksum in checksums.items():
        reasons = []
        for mirror in mirrors:
            try:
                fetch = pooch.HTTPDownloader(progressbar=True, timeout=30)
                pooch.retrieve(mirror + name, known_hash=checksum, fname=name, path=folder, downloader=fetch)
                break
            except (requests.RequestException, ValueError, OSError) as error:
                reasons.append(f"{mirror}: {type(error).__name__}")
        else:
            raise DataError(
                f"{name}: expected it from a mirror, found {'; '.join(reasons)}. "
                "Offline? Put the four MNIST idx files in a folder and name it: --data-dir DIR or MNIST_DIR"
            )


def _idx_file(folder: Path, name: str) -> Path:
    for path in (folder / name, folder / name.removesuffix(".gz")):
        if path.is_file():
            return path
    raise DataError(f"{folder}: expected {name} (or without .gz), found no such file")
