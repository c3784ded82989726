"""Datasets in idx files: MNIST and Fashion-MNIST (60,000 training and 10,000 test images), and EMNIST's split "digits"
(240,000 and 40,000); grey, 28x28.

In: a folder with the four idx files. Out: a `Dataset` or a part; or DataError.
LeCun et al., "Gradient-based learning", 1998; Xiao et al., "Fashion-MNIST", 2017; Cohen et al., "EMNIST", 2017.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from common.files import sha256
from common.idx import IdxFile
from common.preprocessing_settings import Preprocessing
from models.data.dataset import DIGITS, DataError, Dataset, Part
from models.data.download import cache_folder, download, named_folder

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


MAX_IDX_BYTES = 1 << 30  # a header may claim any size; MNIST's largest part is 47 MB


class _IdxFile(IdxFile):
    error = DataError


@dataclass(frozen=True)
class IdxFiles:
    """`variable`: the environment variable with their folder; `parts`: part -> file name; `turned`: the files hold each
    image transposed. Without `checksums` and `mirrors` nothing is downloaded.

    `installed`: where the Debian package `package` puts its files, compressed anew; `contents`: the sha256 of each once
    decompressed.
    """

    variable: str
    parts: Mapping[str, str]
    labels: tuple[str, ...] = DIGITS
    preprocessing: Preprocessing = "ink"
    turned: bool = False
    checksums: Mapping[str, str] = field(default_factory=dict)
    mirrors: tuple[str, ...] = ()
    package: str = ""
    installed: Path | None = None
    contents: Mapping[str, str] = field(default_factory=dict)


IDX_SETS = {
    "mnist": IdxFiles(
        "MNIST_DIR",
        MNIST_PARTS,
        # As first published; source: torchvision's datasets/mnist.py.
        checksums={
            "train-images-idx3-ubyte.gz": "md5:f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "train-labels-idx1-ubyte.gz": "md5:d53e105ee54ea40749a09fcbcd1e9432",
            "t10k-images-idx3-ubyte.gz": "md5:9fb629c4189551a2d022fa330f9573f3",
            "t10k-labels-idx1-ubyte.gz": "md5:ec29112dd5afa0611ce80d1b7f02629c",
        },
        mirrors=(
            "https://ossci-datasets.s3.amazonaws.com/mnist/",
            "https://storage.googleapis.com/cvdf-datasets/mnist/",
        ),
    ),
    # Not downloaded: the archive has half a gigabyte, mostly other characters.
    "emnist-digits": IdxFiles("EMNIST_DIR", EMNIST_PARTS, turned=True),
    "fashion-mnist": IdxFiles(
        "FASHION_MNIST_DIR",
        MNIST_PARTS,
        FASHION_MNIST_LABELS,
        "photo",
        # As published: https://github.com/zalandoresearch/fashion-mnist.
        checksums={
            "train-images-idx3-ubyte.gz": "md5:8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            "train-labels-idx1-ubyte.gz": "md5:25c81989df183df01b3e8a0aad5dffbe",
            "t10k-images-idx3-ubyte.gz": "md5:bef4ecab320f06d8554ea6380940ec79",
            "t10k-labels-idx1-ubyte.gz": "md5:bb300cfdad3c16e7a12a480ee83cd310",
        },
        mirrors=("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",),
        package="dataset-fashion-mnist",
        installed=Path("/usr/share/datasets/fashion-mnist"),
        contents={
            "train-images-idx3-ubyte.gz": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
            "train-labels-idx1-ubyte.gz": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
            "t10k-images-idx3-ubyte.gz": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
            "t10k-labels-idx1-ubyte.gz": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
        },
    ),
}


def load_idx(name: str, folder: Path) -> Dataset:
    train, test = (load_idx_part(name, folder, part) for part in ("train", "test"))
    return Dataset(name, *train, *test, IDX_SETS[name].labels, IDX_SETS[name].preprocessing)


def load_idx_part(name: str, folder: Path, part: str) -> Part:
    """Images uint8 (n, 1, H, W) and labels int64 (n,) of `part`, train or test. Raises DataError."""
    files = IDX_SETS[name]
    contents = files.contents if folder == files.installed else {}
    wanted = [files.parts[f"{part} {kind}"] for kind in ("images", "labels")]
    paths = [_find(folder, file) for file in wanted]
    images, labels = (
        read_idx(path, dimensions, contents.get(file))
        for path, file, dimensions in zip(paths, wanted, (2, 0), strict=True)
    )
    if len(images) != len(labels) or len(images) == 0:
        raise DataError(
            f"{folder}: expected {part} images (n, height, width) and as many labels, "
            f"found {images.shape} and {labels.shape}"
        )
    if labels.max() >= len(files.labels):
        raise DataError(f"{paths[1]}: expected labels from 0 to {len(files.labels) - 1}, found {labels.max()}")
    images = np.ascontiguousarray(images.swapaxes(1, 2)) if files.turned else images
    return images[:, None], labels.astype(np.int64)


def read_idx(path: Path, dimensions: int, checksum: str | None = None) -> NDArray[np.uint8]:
    """uint8 (n, …), items of so many `dimensions`. `checksum`: sha256 of the decompressed bytes. Raises DataError."""
    with _IdxFile(str(path), dimensions) as file:
        if (size := file.count * math.prod(file.item_shape)) > MAX_IDX_BYTES:
            raise DataError(f"{path}: expected at most {MAX_IDX_BYTES} bytes, found {size} in the header")
        blocks = [*file.blocks(0, file.count, MAX_IDX_BYTES)]
    items = blocks[0] if blocks else np.empty((0, *file.item_shape), np.uint8)
    if checksum and (found := sha256(file.header + items.tobytes())) != checksum:
        raise DataError(f"{path}: expected sha256 {checksum} once decompressed, found {found}")
    return items


def _find(folder: Path, name: str) -> Path:
    for path in (folder / name, folder / name.removesuffix(".gz")):
        if path.is_file():
            return path
    raise DataError(f"{folder}: expected {name} (or without .gz), found no such file")


def find_idx(name: str, data_dir: Path | None, fetch: bool = True) -> Path:
    """`data_dir`, else the folder in the environment, else Debian's, else the cache, which `fetch` fills.

    Raises DataError.
    """
    files = IDX_SETS[name]
    if folder := named_folder(data_dir, files.variable):
        return folder
    if files.installed and files.installed.is_dir():
        return files.installed
    if not files.mirrors:
        wanted = ", ".join(files.parts.values())
        raise DataError(f"{name}: expected a folder with {wanted} in --data-dir or {files.variable}, found neither")
    cache = cache_folder(name)
    debian = f", or on Debian: apt-get install {files.package}" if files.package else ""
    if fetch:
        otherwise = f"Put its four idx files in a folder: --data-dir DIR or {files.variable}{debian}"
        download(files.checksums, files.mirrors, cache, otherwise)
    elif not all((cache / file).is_file() for file in files.checksums):
        places = f"--data-dir, {files.variable} or {cache}"
        raise DataError(f"{name}: expected its four idx files in {places}, found none{debian}")
    return cache
