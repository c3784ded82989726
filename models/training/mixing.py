"""Mixes training pictures in pairs, and their targets alike.

In: pixels float (B, C, H, W), targets (B, num_classes). Out: the same shapes. The draws are of PyTorch's generator.

- `mixed` adds another picture to each (Zhang et al., "mixup: Beyond Empirical Risk Minimization", 2018). A picture
  keeps the larger share: max(l, 1 - l), l from Beta(alpha, alpha) for every picture.
- `pasted` puts a rectangle of another picture into each (Yun et al., "CutMix", 2019): at
  the same place in all pictures of a batch, of any area.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from models.data.outlier_exposure import NO_CLASS


def mixing(mixup: float, cutmix: float) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """`cutmix`: share of the batches that `pasted` gets; of the others `mixed`, if `mixup`, its alpha, is above 0."""

    def mix(pixels: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        if cutmix and torch.rand(()) < cutmix:
            return pasted(pixels, targets)
        return mixed(pixels, targets, mixup) if mixup else (pixels, targets)

    return mix


def mixed(pixels: Tensor, targets: Tensor, alpha: float) -> tuple[Tensor, Tensor]:
    """`alpha` > 0: the larger it is, the nearer the shares are to halves."""
    shares, others = _larger_shares(len(pixels), alpha).to(pixels), torch.randperm(len(pixels), device=pixels.device)
    return _between(pixels[others], pixels, shares), _between(targets[others], targets, shares)


def pasted(pixels: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    side, others = torch.rand(()).sqrt().item(), torch.randperm(len(pixels), device=pixels.device)
    rows, columns = (_interval(length, side) for length in pixels.shape[2:])
    pixels = pixels.clone()
    pixels[:, :, rows, columns] = pixels[others][:, :, rows, columns]
    covered = (rows.stop - rows.start) * (columns.stop - columns.start) / pixels[0, 0].numel()
    return pixels, targets.lerp(targets[others], covered)


def _interval(length: int, share: float) -> slice:
    """A random interval of a line of pixels. Its middle is anywhere, so an end may be outside and is cut."""
    middle, half = int(torch.randint(length, ())), int(length * share) // 2
    return slice(max(0, middle - half), min(length, middle + half))


def _larger_shares(count: int, alpha: float) -> Tensor:
    """max(l, 1 - l) of l = g / (g + h), float64 (count,); g and h from Gamma(alpha) = Gamma(alpha + 1) U^(1 / alpha).

    Logarithms, since g and h of a small alpha are zero in any precision.
    """
    wider = torch.distributions.Gamma(torch.tensor(alpha + 1, dtype=torch.float64), 1.0).sample((2, count))
    first, second = wider.log() + (1 - torch.rand(2, count, dtype=torch.float64)).log() / alpha
    larger: Tensor = (first - second).abs().sigmoid()
    return larger


def _between(start: Tensor, end: Tensor, share: Tensor) -> Tensor:
    return start.lerp(end, share.view(-1, *[1] * (end.ndim - 1)))


def as_probabilities(labels: Tensor, classes: int) -> Tensor:
    """Labels int64 (B,) or probabilities (B, classes) -> probabilities float (B, classes); NO_CLASS: all alike."""
    if labels.is_floating_point():
        return labels
    return F.one_hot(labels.clamp(min=0), classes).float().where(labels[:, None] != NO_CLASS, 1 / classes)
