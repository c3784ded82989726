"""What `vitbn bulk` is compared with: a loop over ONNX Runtime, as a user would write it.

    python -m benchmarks.load.bulk_baseline MODEL.onnx FILE INDEX COUNT

Classifies part INDEX of COUNT of the images in FILE on a single thread, and drops the answers. FILE: an idx file of
uint8 images (n, 28, 28).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnxruntime as ort

BATCH_SIZE = 256  # as `vitbn bulk`
SHAPE = (-1, 1, 28, 28)

Pixels = np.ndarray[Any, np.dtype[np.uint8]]


def main(model: str, path: str, index: int, count: int) -> None:
    session = start_session(model)
    for batch in batches(path, index, count):
        session.run(["logits"], {"image": batch})[0].argmax(axis=1)


def start_session(model: str) -> ort.InferenceSession:
    """On a single thread of the CPU."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return ort.InferenceSession(model, options, ["CPUExecutionProvider"])


def batches(path: str, index: int, count: int) -> Iterator[Pixels]:
    """Every `count`-th batch of the file's images, uint8 (B, 1, 28, 28), beginning with batch `index`."""
    images = np.memmap(path, np.uint8, "r", offset=16).reshape(SHAPE)
    for start in range(index * BATCH_SIZE, len(images), count * BATCH_SIZE):
        yield images[start : start + BATCH_SIZE]


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
