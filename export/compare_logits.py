"""Compares the logits of two stages of the export: shapes, dtypes, values, argmax, in that order.

In: two functions from images to logits. Out: a `Comparison`, or EquivalenceError that names the first difference.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from common.plurals import counted
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
TIE = 1e-6  # relative to the largest logit: logits that are closer are equal in float32


class EquivalenceError(ExportError):
    """The message names what differs: names, axes, shapes, dtypes, values or classes."""


@dataclass(frozen=True)
class Comparison:
    """A comparison that held, at batches of up to `images` images. Errors are absolute.

    `largest`: the largest logit. `relative`: the tolerance, relative to it. `float32_error`: how far float32 takes the
    network itself from its float64; None if it was not compared with float64.
    """

    stages: str
    max_abs_error: float
    float32_error: float | None
    relative: float
    largest: float
    images: int

    @property
    def tolerance(self) -> float:
        """The largest absolute error that was allowed."""
        return self.relative * self.largest

    def __str__(self) -> str:
        rounding = "" if self.float32_error is None else f" where the network's own is {self.float32_error:.2e}"
        limit = f"tolerance {self.tolerance:.2e} ({self.relative:.0e} of the largest logit)"
        error = f"max |error| {self.max_abs_error:.2e}{rounding}"
        return f"{self.stages}: {error}, {limit}, same class, {self.images} images"


def compare(
    stages: str,
    expected: Classifier,
    actual: Classifier,
    images: Images,
    tolerance: float,
    batch_sizes: Sequence[int] = BATCH_SIZES,
    exact: Classifier | None = None,
    float32_error: float = 0.0,
) -> Comparison:
    """Compares both on the first images, at each batch size. Images: uint8 (n, C, H, W).

    `stages`: what is compared, for messages. `tolerance`: relative to the largest logit. `exact`: the network in
    float64. If it is given, both are compared with it, and `actual` may err twice as much as `expected`, or twice
    `float32_error`, the relative error of another float32 program of the network. Raises EquivalenceError.
    """
    answers: list[tuple[int, Logits, Logits, Logits]] = []
    for size in batch_sizes:
        batch = images[:size]
        if len(batch) < size or size < 1:
            raise EquivalenceError(f"{stages}: expected {counted(size, 'image')} to compare, found {len(batch)}")
        want, have = expected(batch), actual(batch)
        _check_form(stages, want, have, f" at batch {size}")
        answers.append((size, want if exact is None else exact(batch), want, have))
    if not answers:
        raise EquivalenceError(f"{stages}: expected images to compare, found none")
    rounding = max(float32_error, *(_float32_error(stages, reference, want) for _, reference, want, _ in answers))
    relative = allowed(tolerance, rounding)
    for size, reference, want, have in answers:
        _check_error(stages, reference, have, relative, f" at batch {size}")
        check_classes(stages, want, have, max(TIE, 2 * rounding))
    largest = max(float(np.abs(reference).max()) for _, reference, _, _ in answers)
    return Comparison(
        stages,
        max_abs_error=max(largest_error(reference, have) for _, reference, _, have in answers),
        float32_error=None if exact is None else rounding * largest,
        relative=relative,
        largest=largest,
        images=max(size for size, *_ in answers),
    )


def float32_error(stages: str, exact: Classifier, single: Classifier, images: Images) -> float:
    """How far a network's float32 is from its float64, relative to the largest logit.

    Raises EquivalenceError if the network overflows float32 or loses most digits in it.
    """
    return _float32_error(stages, exact(images), single(images))


def _float32_error(stages: str, exact: Logits, single: Logits) -> float:
    """As `float32_error`, of logits."""
    if not (error := relative_error(exact, single)) <= WORST["float32"]:  # NaN fails too
        limit = f"expected the network itself within {WORST['float32']:.0e} of its answers in float64"
        raise EquivalenceError(f"{stages}: {limit}, found {error:.1e} of the largest logit")
    return error


def check(stages: str, expected: Logits, actual: Logits, tolerance: float) -> float:
    """The largest absolute error. Raises EquivalenceError above `tolerance`, relative to the largest logit."""
    _check_form(stages, expected, actual)
    _check_error(stages, expected, actual, tolerance)
    return largest_error(expected, actual)


def _check_form(stages: str, expected: Logits, actual: Logits, where: str = "") -> None:
    """Raises EquivalenceError for another shape or dtype. `where`: added to the message."""
    if expected.shape != actual.shape:
        raise EquivalenceError(f"{stages}: expected logits {expected.shape}{where}, found {actual.shape}")
    if expected.dtype != actual.dtype:
        raise EquivalenceError(f"{stages}: expected {expected.dtype}, found {actual.dtype}")


def _check_error(stages: str, expected: Logits, actual: Logits, tolerance: float, where: str = "") -> None:
    if not (error := relative_error(expected, actual)) <= tolerance:  # NaN fails too
        limit = f"expected an error of at most {tolerance:.1e} of the largest logit{where}"
        raise EquivalenceError(f"{stages}: {limit}, found {error:.1e}")


def check_classes(stages: str, expected: Logits, actual: Logits, tie: float = TIE) -> None:
    """Raises EquivalenceError if an image gets another class, unless its two best logits are a tie.

    `tie`: the largest difference of such logits, relative to the largest logit.
    """
    best = np.sort(expected, axis=1)[:, -2:]
    decided = best[:, -1] - best[:, 0] > tie * np.abs(expected).max()
    differs = np.flatnonzero(decided & (expected.argmax(1) != actual.argmax(1)))
    if len(differs):
        i = differs[0]
        classes = f"expected class {expected[i].argmax()} of image {i}, found {actual[i].argmax()}"
        raise EquivalenceError(f"{stages}: {classes}")


def in_parts(classify: Classifier, largest: int, smallest: int = 1) -> Classifier:
    """A classifier of any number of images that calls `classify` with `smallest` to `largest`; pads the last batch."""

    def padded(part: Images) -> Images:
        return part if len(part) >= smallest else np.resize(part, (smallest, *part.shape[1:]))

    def classify_all(images: Images) -> Logits:
        parts = (images[start : start + largest] for start in range(0, len(images), largest))
        return np.concatenate([classify(padded(part))[: len(part)] for part in parts])

    return classify_all


def torch_classifier(model: nn.Module) -> Classifier:
    """Runs the module in evaluation mode, in the dtype of its weights."""
    import torch

    model.eval()

    def classify(images: Images) -> Logits:
        with torch.inference_mode():
            logits: Logits = model(torch.tensor(images)).numpy()
        return logits

    return classify


def double_classifier(model: ir.Model) -> Classifier:
    """Runs the graph in float64, with the compiler's evaluator."""
    from export.compiler.proof.runner import double_answers

    return lambda images: double_answers(model, {INPUT_NAME: images})[0]


def onnx_classifier(data: bytes, threads: int = 0) -> Classifier:
    """Runs an ONNX file in ONNX Runtime on the CPU. 0 threads: all cores."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    run: Callable[..., list[Logits]] = session.run
    return lambda images: run([OUTPUT_NAME], {INPUT_NAME: images})[0]
