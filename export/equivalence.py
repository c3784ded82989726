"""Compares the logits of two stages: shapes, dtypes, values, argmax, in that order.

In: two functions from images to logits. Out: a `Comparison`, or an error that names the first difference.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from export.compiler.proof.tolerances import WORST, allowed, largest_error, relative_error
from export.errors import ExportError
from models.networks.config import INPUT_NAME, OUTPUT_NAME

if TYPE_CHECKING:
    import onnx_ir as ir
    from torch import nn

Images = NDArray[np.uint8]
Logits = NDArray[Any]  # float32 or float64
Classifier = Callable[[Images], Logits]

BATCH_SIZES = (1, 2, 7, 64)
TIE = 1e-6  # of the largest logit: closer logits are a tie in float32


class EquivalenceError(ExportError):
    """The message names what differs: names, axes, shapes, dtypes, values or classes."""


@dataclass(frozen=True)
class Comparison:
    """Absolute errors of logits up to `largest`; `relative`: the tolerance, relative to them.

    `own`: the error of the network itself in float32; None where the expected answers are the reference.
    """

    stages: str
    max_abs_error: float
    own: float | None
    relative: float
    largest: float
    images: int

    @property
    def tolerance(self) -> float:
        return self.relative * self.largest

    def __str__(self) -> str:
        own = "" if self.own is None else f" where the network's own is {self.own:.2e}"
        limit = f"tolerance {self.tolerance:.2e} ({self.relative:.0e} of the largest logit)"
        return f"{self.stages}: max |error| {self.max_abs_error:.2e}{own}, {limit}, same class, {self.images} images"


def compare(
    stages: str,
    expected: Classifier,
    found: Classifier,
    images: Images,
    tolerance: float,
    batch_sizes: Sequence[int] = BATCH_SIZES,
    exact: Classifier | None = None,
    own: float = 0.0,
) -> Comparison:
    """Images (n, C, H, W); `tolerance` relative to the largest logit.

    `exact`: the same network in float64, the reference of both; found answers may err twice as much as the expected, or
    as another program of the network, whose error is `own`. Raises EquivalenceError.
    """
    answers: list[tuple[int, Logits, Logits, Logits]] = []
    for size in batch_sizes:
        batch = images[:size]
        if len(batch) < size or size < 1:
            raise EquivalenceError(f"{stages}: expected {size} images to compare, found {len(batch)}")
        want, have = expected(batch), found(batch)
        _check_form(stages, want, have, f" at batch {size}")
        answers.append((size, want if exact is None else exact(batch), want, have))
    if not answers:
        raise EquivalenceError(f"{stages}: expected images to compare, found none")
    own = max(own, *(_own(stages, known, want) for _, known, want, _ in answers))
    relative = allowed(tolerance, own)
    for size, known, want, have in answers:
        _check_error(stages, known, have, relative, f" at batch {size}")
        check_classes(stages, want, have, max(TIE, 2 * own))
    largest = max(float(np.abs(known).max()) for _, known, _, _ in answers)
    worst = max(largest_error(known, have) for _, known, _, have in answers)
    return Comparison(
        stages, worst, None if exact is None else own * largest, relative, largest, max(size for size, *_ in answers)
    )


def own_error(stages: str, exact: Classifier, single: Classifier, images: Images) -> float:
    """How far a network's float32 is from its float64, relative to the largest logit.

    Raises EquivalenceError where float32 does not hold the network.
    """
    return _own(stages, exact(images), single(images))


def _own(stages: str, exact: Logits, single: Logits) -> float:
    if not (own := relative_error(exact, single)) <= WORST["float32"]:  # NaN fails too
        limit = f"expected the network itself within {WORST['float32']:.0e} of its answers in float64"
        raise EquivalenceError(f"{stages}: {limit}, found {own:.1e} of the largest logit")
    return own


def check(stages: str, expected: Logits, found: Logits, tolerance: float) -> float:
    """The largest absolute error. Raises EquivalenceError above `tolerance`, relative to the largest logit."""
    _check_form(stages, expected, found)
    _check_error(stages, expected, found, tolerance)
    return largest_error(expected, found)


def _check_form(stages: str, expected: Logits, found: Logits, where: str = "") -> None:
    if expected.shape != found.shape:
        raise EquivalenceError(f"{stages}: expected logits {expected.shape}{where}, found {found.shape}")
    if expected.dtype != found.dtype:
        raise EquivalenceError(f"{stages}: expected {expected.dtype}, found {found.dtype}")


def _check_error(stages: str, expected: Logits, found: Logits, tolerance: float, where: str = "") -> None:
    if not (error := relative_error(expected, found)) <= tolerance:  # NaN fails too
        limit = f"expected an error of at most {tolerance:.1e} of the largest logit{where}"
        raise EquivalenceError(f"{stages}: {limit}, found {error:.1e}")


def check_classes(stages: str, want: Logits, have: Logits, tie: float = TIE) -> None:
    """`tie`: relative to the largest logit."""
    best = np.sort(want, axis=1)[:, -2:]
    decided = best[:, -1] - best[:, 0] > tie * np.abs(want).max()
    differs = np.flatnonzero(decided & (want.argmax(1) != have.argmax(1)))
    if len(differs):
        i = differs[0]
        raise EquivalenceError(f"{stages}: expected class {want[i].argmax()} of image {i}, found {have[i].argmax()}")


def in_parts(classify: Classifier, largest: int, smallest: int = 1) -> Classifier:
    """`classify` in batches of `smallest` to `largest` images; pads short batches."""

    def padded(part: Images) -> Images:
        return part if len(part) >= smallest else np.resize(part, (smallest, *part.shape[1:]))

    def whole(images: Images) -> Logits:
        parts = (images[start : start + largest] for start in range(0, len(images), largest))
        return np.concatenate([classify(padded(part))[: len(part)] for part in parts])

    return whole


def torch_classifier(model: nn.Module) -> Classifier:
    import torch

    model.eval()

    def classify(images: Images) -> Logits:
        with torch.inference_mode():
            logits: Logits = model(torch.tensor(images)).numpy()
        return logits

    return classify


def double_classifier(model: ir.Model) -> Classifier:
    """In float64."""
    from export.compiler.proof.runs import double_answers

    return lambda images: double_answers(model, {INPUT_NAME: images})[0]


def onnx_classifier(data: bytes, threads: int = 0) -> Classifier:
    """0 threads: all cores."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    run: Callable[..., list[Logits]] = session.run
    return lambda images: run([OUTPUT_NAME], {INPUT_NAME: images})[0]
