"""CIFAR-10: 50,000 training and 10,000 test pictures, RGB, 32x32.

In: a folder with the six binary batches. Out: a `Dataset`; or DataError. Krizhevsky, "Learning Multiple Layers of
Features from Tiny Images", 2009; the format: https://www.cs.toronto.edu/~kriz/cifar.html.
"""

from __future__ import annotations

import tarfile
import zlib
from pathlib import Path

import numpy as np

from common.files import reason, write_atomically
from models.data.dataset import DataError, Dataset, Part
from models.data.download import cache_folder, download, named_folder

LABELS = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
SHAPE = (3, 32, 32)  # channels red, green, blue; height, width
RECORD_BYTES = 1 + 3 * 32 * 32  # a label, then the planes row by row

VARIABLE = "CIFAR10_DIR"
BINARY_FOLDER = "cifar-10-batches-bin"
TRAIN_BATCHES = tuple(f"data_batch_{number}" for number in range(1, 6))
TEST_BATCH = "test_batch"
BATCHES = (*TRAIN_BATCHES, TEST_BATCH)

ARCHIVE = "cifar-10-binary.tar.gz"
CHECKSUMS = {ARCHIVE: "md5:c32a1d4ab5d03f1284b67883e8d87530"}  # as published
MIRRORS = ("https://www.cs.toronto.edu/~kriz/",)
OTHERWISE = f"Put CIFAR-10's batches in a folder and name it: --data-dir DIR or {VARIABLE}"
MAX_BATCH_BYTES = 1 << 26  # an archive may claim any size; a real batch has 31 MB


def find_cifar10(data_dir: Path | None, fetch: bool = True) -> Path:
    """The folder of the batches: the user's, else the cache, which `fetch` fills. Raises DataError."""
    if named := named_folder(data_dir, VARIABLE):
        return named
    cache = cache_folder("cifar10")
    folder = cache / BINARY_FOLDER
    if all((folder / f"{name}.bin").is_file() for name in BATCHES):
        return folder
    if not fetch:
        raise DataError(f"cifar10: expected its batches in --data-dir, {VARIABLE} or {folder}, found none")
    download(CHECKSUMS, MIRRORS, cache, OTHERWISE)
    unpack(cache / ARCHIVE, folder)
    (cache / ARCHIVE).unlink(missing_ok=True)  # another training may have removed it
    return folder


def unpack(archive: Path, folder: Path) -> None:
    """Writes the archive's six batches to `folder`, whatever other paths it holds. Raises DataError."""
    try:
        with tarfile.open(archive, "r:gz") as tar:
            for name in BATCHES:
                member = tar.getmember(f"{BINARY_FOLDER}/{name}.bin")
                content = tar.extractfile(member) if member.isreg() and member.size <= MAX_BATCH_BYTES else None
                if content is None:
                    what = f"{member.size} bytes" if member.isreg() else "no plain file"
                    raise DataError(f"{archive}: expected {member.name} of up to {MAX_BATCH_BYTES} bytes, found {what}")
                write_atomically(folder / f"{name}.bin", content.read())
    except (OSError, EOFError, KeyError, tarfile.TarError, zlib.error) as error:
        raise DataError(f"{archive}: expected the archive of CIFAR-10's batches, found {reason(error)}") from error


def load_cifar10(folder: Path) -> Dataset:
    place = _find_batches(folder)
    parts = {name: read_batch(place / f"{name}.bin") for name in BATCHES}
    counts = [len(labels) for _, labels in parts.values()]
    if len(set(counts)) > 1:
        raise DataError(f"{place}: expected as many pictures in each of the six batches, found {counts}")
    images, labels = (np.concatenate([parts[name][i] for name in TRAIN_BATCHES]) for i in (0, 1))
    return Dataset("cifar10", images, labels, *parts[TEST_BATCH], LABELS, "photo", patch_size=(4, 4))


def _find_batches(folder: Path) -> Path:
    for place in (folder, folder / BINARY_FOLDER):
        if any((place / f"{name}.bin").is_file() for name in BATCHES):
            return place
    raise DataError(
        f"{folder}: expected data_batch_1.bin to data_batch_5.bin and test_batch.bin there or in {BINARY_FOLDER}, "
        "found none"
    )


def read_batch(path: Path) -> Part:
    """Images uint8 (n, 3, 32, 32) and labels int64 (n,). Raises DataError."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BATCH_BYTES)
    except OSError as error:
        raise DataError(f"{path}: expected a batch of CIFAR-10, found {error.strerror}") from error
    if not data or len(data) % RECORD_BYTES:
        raise DataError(f"{path}: expected records of {RECORD_BYTES} bytes, found {len(data)} bytes in all")
    records = np.frombuffer(data, np.uint8).reshape(-1, RECORD_BYTES)
    labels = records[:, 0].astype(np.int64)
    if labels.max() >= len(LABELS):
        raise DataError(f"{path}: expected labels from 0 to {len(LABELS) - 1}, found {labels.max()}")
    return records[:, 1:].reshape(-1, *SHAPE), labels
