"""idx files, MNIST's format: a header with the shape, then unsigned bytes; gzipped or not.

In: a file, or a folder and file names. Out: the array, or images with their labels; or DataError.
"""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from common.files import sha256
from models.data.dataset import DataError, Part

MAX_IDX_BYTES = 1 << 30  # a gzip file may claim any size; MNIST's largest part is 47 MB


def read_part(
    folder: Path, names: Mapping[str, str], part: str, classes: int, contents: Mapping[str, str] | None = None
) -> Part:
    """`contents`: by name the sha256 that a file's decompressed bytes must have."""
    wanted = [names[f"{part} {kind}"] for kind in ("images", "labels")]
    paths = [_find(folder, name) for name in wanted]
    images, labels = (read_idx(path, (contents or {}).get(name)) for path, name in zip(paths, wanted, strict=True))
    if images.ndim != 3 or labels.ndim != 1 or len(images) != len(labels) or len(images) == 0:
        raise DataError(
            f"{folder}: expected {part} images (n, height, width) and as many labels, "
            f"found {images.shape} and {labels.shape}"
        )
    if labels.max() >= classes:
        raise DataError(f"{paths[1]}: expected labels from 0 to {classes - 1}, found {labels.max()}")
    return images[:, None], labels.astype(np.int64)


def read_idx(path: Path, checksum: str | None = None) -> NDArray[np.uint8]:
    """`checksum`: the sha256 that the decompressed bytes must have."""
    try:
        with path.open("rb") as raw:
            zipped = raw.read(2) == b"\x1f\x8b"
            raw.seek(0)
            data = gzip.GzipFile(fileobj=raw).read(MAX_IDX_BYTES) if zipped else raw.read(MAX_IDX_BYTES)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: expected an idx file, found {error}") from error
    if checksum and (found := sha256(data)) != checksum:
        raise DataError(f"{path}: expected sha256 {checksum} once decompressed, found {found}")
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


def _find(folder: Path, name: str) -> Path:
    for path in (folder / name, folder / name.removesuffix(".gz")):
        if path.is_file():
            return path
    raise DataError(f"{folder}: expected {name} (or without .gz), found no such file")
