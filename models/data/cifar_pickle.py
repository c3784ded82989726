"""Reads CIFAR-10's pickled batches without running code.

In: a dictionary of a numpy array of pixels and a list of labels, pickled by Python 2. Out: both; or DataError. A pickle
may call whatever it imports: recorders replace numpy's three names, and any other name is refused.
"""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.data.dataset import DataError

PIXELS = 3 * 32 * 32


class _Recorded:
    def __init__(self, *arguments: Any) -> None:
        self.arguments = arguments
        self.state: Any = ()

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> type[_Recorded]:
        # numpy 1 and 2 name the module differently.
        if f"{module}.{name}" in ("numpy.core.multiarray._reconstruct", "numpy._core.multiarray._reconstruct"):
            return _Recorded
        if module == "numpy" and name in ("ndarray", "dtype"):
            return _Recorded
        raise pickle.UnpicklingError(f"the name {module}.{name}".replace("\n", " "))


def read_pickled_batch(path: Path, data: bytes) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Pixels uint8 (n, 3072) and labels int64 (n,)."""
    try:
        batch = _Reader(io.BytesIO(data), encoding="bytes").load()
        pixels, labels = _pixels(_entry(batch, "data")), _labels(_entry(batch, "labels"))
    except Exception as error:  # damaged bytes raise any exception
        found = " ".join(str(error).split()) or type(error).__name__
        raise DataError(f"{path}: expected a pickled dictionary of only pixels and labels, found {found}") from error
    if len(pixels) != len(labels) or not len(labels):
        raise DataError(f"{path}: expected as many labels as pictures, found {len(labels)} and {len(pixels)}")
    return pixels, labels


def _entry(batch: Any, key: str) -> Any:
    """Python 2 wrote the keys as bytes."""
    if not isinstance(batch, dict):
        raise TypeError(f"a {type(batch).__name__}")
    value = batch.get(key.encode(), batch.get(key))
    if value is None:
        raise KeyError(f"no {key}")
    return value


def _pixels(array: Any) -> NDArray[np.uint8]:
    if not isinstance(array, _Recorded):
        raise TypeError(f"data that are a {type(array).__name__}")
    _, shape, dtype, by_columns, content = array.state
    if by_columns or len(shape) != 2 or shape[1] != PIXELS or dtype.arguments[0] not in (b"u1", "u1"):
        raise ValueError(f"data that are no unsigned bytes of the shape (n, {PIXELS})")
    return np.frombuffer(content, np.uint8).reshape(shape)


def _labels(labels: Any) -> NDArray[np.int64]:
    if not isinstance(labels, list) or not all(type(label) is int and label >= 0 for label in labels):
        raise ValueError("labels that are no list of integers from 0 on")
    return np.array(labels, np.int64)
