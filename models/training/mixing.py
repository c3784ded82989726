"""Mixes training pictures in pairs, and their targets alike (Zhang et al., "mixup: Beyond Empirical Risk Minimization",
2018).

In: pixels float (B, C, H, W), targets (B, num_classes). Out: the same shapes. Each picture keeps its larger part:
max(l, 1 - l), with an l of its own from Beta(alpha, alpha).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def mixed(pixels: Tensor, targets: Tensor, alpha: float) -> tuple[Tensor, Tensor]:
    """`alpha` > 0: the larger, the nearer to halves. The draws are of PyTorch's generator."""
    own, others = _larger_parts(len(pixels), alpha).to(pixels), torch.randperm(len(pixels), device=pixels.device)
    return _between(pixels[others], pixels, own), _between(targets[others], targets, own)


def _larger_parts(count: int, alpha: float) -> Tensor:
    """max(l, 1 - l) of l = g / (g + h), float64 (count,); g and h from Gamma(alpha) = Gamma(alpha + 1) U^(1 / alpha).

    Logarithms, since g and h of a small alpha are zero in any precision.
    """
    wider = torch.distributions.Gamma(torch.tensor(alpha + 1, dtype=torch.float64), 1.0).sample((2, count))
    first, second = wider.log() + (1 - torch.rand(2, count, dtype=torch.float64)).log() / alpha
    return (first - second).abs().sigmoid()


def _between(start: Tensor, end: Tensor, share: Tensor) -> Tensor:
    return start.lerp(end, share.view(-1, *[1] * (end.ndim - 1)))


def as_probabilities(labels: Tensor, classes: int) -> Tensor:
    """Labels int64 (B,) or probabilities (B, classes) -> probabilities float (B, classes)."""
    return labels if labels.is_floating_point() else F.one_hot(labels, classes).float()
