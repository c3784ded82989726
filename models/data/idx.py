"""Reads a dataset's idx files in full.

In: a file, or a folder and file names. Out: the array, or images with their labels; or DataError.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from common.files import sha256
from common.idx import IdxFile
from models.data.dataset import DataError, Part

MAX_IDX_BYTES = 1 << 30  # a header may claim any size; MNIST's largest part is 47 MB


class _IdxFile(IdxFile):
    error = DataError


def read_part(
    folder: Path, names: Mapping[str, str], part: str, classes: int, contents: Mapping[str, str] | None = None
) -> Part:
    """Images uint8 (n, 1, H, W) and labels int64 (n,) of `part`, train or test. Raises DataError.

    `contents`: file name -> the sha256 that the decompressed bytes must have.
    """
    wanted = [names[f"{part} {kind}"] for kind in ("images", "labels")]
    paths = [_find(folder, name) for name in wanted]
    images, labels = (
        read_idx(path, dimensions, (contents or {}).get(name))
        for path, name, dimensions in zip(paths, wanted, (2, 0), strict=True)
    )
    if len(images) != len(labels) or len(images) == 0:
        raise DataError(
            f"{folder}: expected {part} images (n, height, width) and as many labels, "
            f"found {images.shape} and {labels.shape}"
        )
    if labels.max() >= classes:
        raise DataError(f"{paths[1]}: expected labels from 0 to {classes - 1}, found {labels.max()}")
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
