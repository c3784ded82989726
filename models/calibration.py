"""A temperature T with which 90 % of the answers of 90 % confidence are right; no answer changes.

In: logits float (n, C), labels int64 (n,). Out: T > 0 for softmax(logits / T), fitted on held-out images, and the
expected calibration error of others.
Guo et al., "On Calibration of Modern Neural Networks", ICML 2017, sections 2 and 4.2.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

BINS = 15
LIMITS = (0.05, 20.0)  # without mistakes on the held-out images the best T is 0


def calibrate(held_out: tuple[Tensor, Tensor], test: tuple[Tensor, Tensor]) -> dict[str, float]:
    temperature = round(fit_temperature(*held_out), 4)
    return {
        "temperature": temperature,
        "calibration_error": calibration_error(*test, temperature),
        "calibration_error_before": calibration_error(*test),
    }


def fit_temperature(logits: Tensor, labels: Tensor) -> float:
    """argmin over T in LIMITS of the mean of -log softmax(logits / T)[label], convex in 1/T."""
    from scipy.optimize import minimize_scalar

    logits = logits.double()

    def loss(inverse: float) -> float:
        return F.cross_entropy(logits * inverse, labels).item()

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
