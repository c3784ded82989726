"""Compares the logits of two stages: shapes, dtypes, values, argmax, in that order.

In: two functions from images to logits. Out: a `Comparison`, or an error that names the first difference.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from export.errors import ExportError
from models.config import INPUT_NAME, OUTPUT_NAME

if TYPE_CHECKING:
    from torch import nn

Images = NDArray[np.uint8]
Logits = NDArray[Any]  # float32 or float64
Classifier = Callable[[Images], Logits]

BATCH_SIZES = (1, 2, 7, 64)
TIE = 1e-5  # closer logits are a tie in float32


class EquivalenceError(ExportError):
    """The message names what differs: names, axes, shapes, dtypes, values or classes."""


@dataclass(frozen=True)
class Comparison:
    stages: str
    max_abs_error: float
    tolerance: float
    images: int

    def __str__(self) -> str:
        return (
            f"{self.stages}: max |error| {self.max_abs_error:.2e}, tolerance {self.tolerance:.2e}, "
            f"same class, {self.images} images"
        )


def compare(
    stages: str,
    expected: Classifier,
    found: Classifier,
    images: Images,
    tolerance: float,
    batch_sizes: Sequence[int] = BATCH_SIZES,
) -> Comparison:
    """Images (n, C, H, W), absolute `tolerance`. Raises EquivalenceError."""
    worst, compared = 0.0, 0
    for size in batch_sizes:
        batch = images[:size]
        if len(batch) < size or size < 1:
            raise EquivalenceError(f"{stages}: expected {size} images to compare, found {len(batch)}")
        want, have = expected(batch), found(batch)
        if want.shape != have.shape:
            raise EquivalenceError(f"{stages}: expected logits {want.shape} at batch {size}, found {have.shape}")
        if want.dtype != have.dtype:
            raise EquivalenceError(f"{stages}: expected {want.dtype}, found {have.dtype}")
        error = np.abs(want.astype(np.float64) - have.astype(np.float64)).max()
        if not error <= tolerance:  # NaN fails too
            raise EquivalenceError(
                f"{stages}: expected an error of at most {tolerance:.2e} at batch {size}, found {error:.2e}"
            )
        _check_argmax(stages, want, have)
        worst, compared = max(worst, float(error)), max(compared, size)
    if not compared:
        raise EquivalenceError(f"{stages}: expected images to compare, found none")
    return Comparison(stages, worst, tolerance, compared)


def _check_argmax(stages: str, want: Logits, have: Logits) -> None:
    best = np.sort(want, axis=1)[:, -2:]
    decided = best[:, -1] - best[:, 0] > TIE
    differs = np.flatnonzero(decided & (want.argmax(1) != have.argmax(1)))
    if len(differs):
        i = differs[0]
        raise EquivalenceError(f"{stages}: expected class {want[i].argmax()} of image {i}, found {have[i].argmax()}")


def torch_classifier(model: nn.Module) -> Classifier:
    import torch

    model.eval()

    def classify(images: Images) -> Logits:
        with torch.inference_mode():
            logits: Logits = model(torch.tensor(images)).numpy()
        return logits

    return classify


def onnx_classifier(data: bytes, threads: int = 0) -> Classifier:
    """0 threads: all cores."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    run: Callable[..., list[Logits]] = session.run
    return lambda images: run([OUTPUT_NAME], {INPUT_NAME: images})[0]
