"""Measures accuracy, and fits a temperature T, with which 90 % of the answers of 90 % confidence are right.

In: a network and uint8 images (n, C, H, W). Out: logits or figures. T > 0 for softmax(logits / T) changes no answer and
is fitted on held-out images: Guo et al., "On Calibration of Modern Neural Networks", ICML 2017, sections 2 and 4.2.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.data import Dataset, hold_out
from models.data.outlier_exposure import judging_outliers
from models.evaluation.rejection import DRAWINGS, fit_evidence_limit
from models.networks.config import INPUT_SCALE
from models.training.recipe import Diverged

TEST_BATCH = 100  # fits a CPU's cache: an image takes twice as long in batches of 1000
BINS = 15
FEWEST = 20  # images to fit T on: the T of fewer is further off than T = 1
LIMITS = (0.05, 20.0)  # of T


def measure_accuracy(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    distort: Callable[[Tensor], Tensor] | None = None,
    batch_size: int = TEST_BATCH,
) -> float:
    """The share of right answers for `labels` int64 (n,); other arguments and errors as in `classify`."""
    return int((classify(model, images, distort, batch_size).argmax(1) == labels).sum()) / len(labels)


def accuracy_by_class(right: Tensor, labels: Tensor, classes: int) -> list[float | None]:
    """The share of right answers of each class; None without images. `right`: bool (n,); `labels`: int64 (n,)."""
    counts = labels.bincount(minlength=classes).tolist()
    hits = labels[right].bincount(minlength=classes).tolist()
    return [hit / count if count else None for hit, count in zip(hits, counts, strict=True)]


def classify(
    model: nn.Module,
    images: Tensor,
    distort: Callable[[Tensor], Tensor] | None = None,
    batch_size: int = TEST_BATCH,
) -> Tensor:
    """The logits (n, num_classes) of uint8 `images` (n, C, H, W); raises Diverged if they are not finite."""
    model.eval()
    batches = []
    with torch.inference_mode():
        for batch in images.split(batch_size):
            pixels = batch * INPUT_SCALE
            logits = model(distort(pixels) if distort else pixels)  # (B, num_classes)
            if not logits.isfinite().all():
                raise Diverged("test logits: expected finite numbers, found others; try a lower --lr")
            batches.append(logits)
    return torch.cat(batches)


def measure_calibration(model: nn.Module, dataset: Dataset, held_out: int) -> dict[str, float]:
    """Temperature and evidence limit are fitted on held-out images; the errors are those of the test part.

    `held_out`: number of images, FEWEST at least.
    """
    device = str(next(model.parameters()).device)
    parts = []
    for part in (hold_out(dataset, held_out), dataset):
        images, labels = on_device(part.test_images, part.test_labels, device)
        parts.append((classify(model, images), labels))
    held, test = parts
    temperature = round(fit_temperature(*held), 4)
    others = classify(model, torch.tensor(judging_outliers(dataset, DRAWINGS), device=device))
    return {
        "temperature": temperature,
        "calibration_error": calibration_error(*test, temperature),
        "calibration_error_before": calibration_error(*test),
        **fit_evidence_limit(held[0], others),
    }


def too_few(held_out: int) -> str:
    """Why fewer than FEWEST held-out images fit no temperature, and what to type."""
    found = f"expected {FEWEST} held-out images or more to fit a temperature, found {held_out}"
    return f"{found}; train with --hold-out {FEWEST}, or with more in a val folder of your own"


def fit_temperature(logits: Tensor, labels: Tensor) -> float:
    """argmin over T in LIMITS of the mean of -log softmax(logits / T)[label], convex in 1/T.

    Of n images without a mistake the best T would be 0, and every answer certain. By Laplace's rule of succession their
    labels then have a probability of (n + 1) / (n + 2), and the other classes share the rest.
    """
    from scipy.optimize import minimize_scalar

    logits, classes = logits.double(), logits.shape[1]
    mistaken = bool((logits.argmax(1) != labels).any())
    spared = 0.0 if mistaken else classes / ((classes - 1) * (len(labels) + 2))

    def loss(inverse: float) -> float:
        return F.cross_entropy(logits * inverse, labels, label_smoothing=spared).item()

    low, high = LIMITS
    return 1 / float(minimize_scalar(loss, bounds=(1 / high, 1 / low), method="bounded", options={"xatol": 1e-6}).x)


def calibration_error(logits: Tensor, labels: Tensor, temperature: float = 1.0) -> float:
    """ECE = sum over 15 equal bins of confidence of |share right - mean confidence| * share of the images."""
    confidence, answers = (logits.double() / temperature).softmax(dim=1).max(dim=1)  # (n,), (n,)
    surplus = (answers == labels).double() - confidence
    bins = (confidence * BINS).ceil().long().clamp(1, BINS) - 1  # upper edges belong to their bin
    return float(
        torch.zeros(BINS, dtype=torch.float64, device=bins.device).index_add(0, bins, surplus).abs().sum()
    ) / len(labels)


def on_device(images: Any, labels: Any, device: str) -> tuple[Tensor, Tensor]:
    return torch.tensor(images, device=device), torch.tensor(labels, device=device)
