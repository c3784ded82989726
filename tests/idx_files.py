import struct
from pathlib import Path

import numpy as np


def idx_bytes(array: np.ndarray, kind: int = 8) -> bytes:
    """`kind` 8: unsigned bytes."""
    return struct.pack(f">HBB{array.ndim}I", 0, kind, array.ndim, *array.shape) + array.tobytes()


def write_idx(path: Path, array: np.ndarray) -> None:
    path.write_bytes(idx_bytes(array.astype(np.uint8)))
