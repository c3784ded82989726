"""Small batches of CIFAR-10."""

from pathlib import Path

import numpy as np

from models.data.cifar import BATCHES


def write_binary(folder: Path, batches: dict[str, tuple[np.ndarray, np.ndarray]]) -> Path:
    """Images (n, 3, 32, 32) and labels (n,)."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, (images, labels) in batches.items():
        records = np.concatenate([labels[:, None].astype(np.uint8), images.reshape(len(images), -1)], axis=1)
        (folder / f"{name}.bin").write_bytes(records.tobytes())
    return folder


def random_batches(count: int = 3, seed: int = 0) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    draw = np.random.default_rng(seed)
    images = draw.integers(0, 256, (len(BATCHES), count, 3, 32, 32), np.uint8)
    labels = np.arange(len(BATCHES) * count).reshape(len(BATCHES), count) % 10
    return {name: (images[i], labels[i]) for i, name in enumerate(BATCHES)}
