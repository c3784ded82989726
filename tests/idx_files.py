import struct
from pathlib import Path

import numpy as np


def write_idx(path: Path, array: np.ndarray) -> None:
    header = b"\x00\x00\x08" + struct.pack(f">B{array.ndim}I", array.ndim, *array.shape)
    path.write_bytes(header + array.astype(np.uint8).tobytes())
