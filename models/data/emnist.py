"""EMNIST's split "digits": 240,000 training and 40,000 test images, grey, 28x28.

In: a folder with the four idx files. Out: a `Dataset` or a part; or DataError.
Cohen et al., "EMNIST", 2017.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np

from models.data.dataset import DIGITS, DataError, Dataset, Part
from models.data.download import named_folder
from models.data.idx import read_part

EMNIST_PARTS = {
    f"{part} {kind}": f"emnist-digits-{part}-{kind}-{form}-ubyte.gz"
    for part in ("train", "test")
    for kind, form in (("images", "idx3"), ("labels", "idx1"))
}


def load_emnist(folder: Path) -> Dataset:
    return Dataset("emnist-digits", *load_emnist_part(folder, "train"), *load_emnist_part(folder, "test"), DIGITS)


def load_emnist_part(folder: Path, part: Literal["train", "test"]) -> Part:
    """The files hold each image transposed."""
    images, labels = read_part(folder, EMNIST_PARTS, part, len(DIGITS))
    return np.ascontiguousarray(images.swapaxes(2, 3)), labels


def find_emnist(data_dir: Path | None) -> Path:
    """No download: the archive has half a gigabyte, mostly other characters."""
    folder = named_folder(data_dir, "EMNIST_DIR")
    if folder is None:
        files = ", ".join(EMNIST_PARTS.values())
        raise DataError(f"emnist-digits: expected a folder with {files} in --data-dir or EMNIST_DIR, found neither")
    return folder
