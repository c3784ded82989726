"""Accuracy and calibration. In: a network and uint8 images (n, C, H, W). Out: logits or figures."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from models.calibration import calibrate
from models.config import INPUT_SCALE
from models.data import Dataset, hold_out
from models.train import Diverged

TEST_BATCH = 100  # fits the cache: 1000 take twice as long


def measure_accuracy(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    distort: Callable[[Tensor], Tensor] | None = None,
    batch_size: int = TEST_BATCH,
) -> float:
    """The share of right answers for `labels` int64 (n,); else as `classify`."""
    return int((classify(model, images, distort, batch_size).argmax(1) == labels).sum()) / len(labels)


def accuracy_by_class(right: Tensor, labels: Tensor, classes: int) -> list[float | None]:
    """`right`: bool (n,)."""
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
    device = str(next(model.parameters()).device)
    parts = []
    for part in (hold_out(dataset, held_out), dataset):
        images, labels = on_device(part.test_images, part.test_labels, device)
        parts.append((classify(model, images), labels))
    return calibrate(*parts)


def on_device(images: Any, labels: Any, device: str) -> tuple[Tensor, Tensor]:
    return torch.tensor(images, device=device), torch.tensor(labels, device=device)
