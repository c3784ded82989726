"""Small batches of CIFAR-10: binary, and pickled by Python 2."""

import struct
from pathlib import Path

import numpy as np

from models.data.cifar import BATCHES


def write_binary(folder: Path, batches: dict[str, tuple[np.ndarray, np.ndarray]], suffix: str = ".bin") -> Path:
    """Images (n, 3, 32, 32) and labels (n,)."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, (images, labels) in batches.items():
        records = np.concatenate([labels[:, None].astype(np.uint8), images.reshape(len(images), -1)], axis=1)
        (folder / f"{name}{suffix}").write_bytes(records.tobytes())
    return folder


def write_pickled(folder: Path, batches: dict[str, tuple[np.ndarray, np.ndarray]]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, (images, labels) in batches.items():
        (folder / name).write_bytes(pickled(images.reshape(len(images), -1), labels))
    return folder


def pickled(pixels: np.ndarray, labels: np.ndarray) -> bytes:
    """Strings are bytes, as in Python 2."""
    entries = text(b"batch_label") + text(b"training batch 1 of 5")
    entries += text(b"labels") + b"](" + b"".join(b"K" + bytes([label]) for label in labels) + b"e"
    entries += text(b"data") + array(pixels)
    entries += text(b"filenames") + b"](" + b"".join(text(b"picture_%d.png" % i) for i in range(len(labels))) + b"e"
    return b"\x80\x02}(" + entries + b"u."


def array(pixels: np.ndarray) -> bytes:
    """numpy 1's opcodes for unsigned bytes."""
    empty = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\0\x85U\x01b\x87R"
    shape = b"".join(b"J" + struct.pack("<i", side) for side in pixels.shape) + b"\x86"
    dtype = b"cnumpy\ndtype\nU\x02u1K\0K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\0tb"
    return empty + b"(K\x01" + shape + dtype + b"\x89" + text(pixels.tobytes()) + b"tb"


def text(content: bytes) -> bytes:
    return b"T" + struct.pack("<I", len(content)) + content


def random_batches(count: int = 3, seed: int = 0) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    draw = np.random.default_rng(seed)
    images = draw.integers(0, 256, (len(BATCHES), count, 3, 32, 32), np.uint8)
    labels = np.arange(len(BATCHES) * count).reshape(len(BATCHES), count) % 10
    return {name: (images[i], labels[i]) for i, name in enumerate(BATCHES)}
