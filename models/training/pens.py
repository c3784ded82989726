"""Changes images as other pens, scanners and cameras would: float images (B, C, H, W) in [0, 1] -> the same shape.

Three images in five change. Every number below is drawn anew for each of these:

- Proportions: 3 in 10 are stretched by 0.75 to 1.25 in each direction.
- Stroke width: 3 in 10 are eroded, 1 in 4 dilated, by the least or the largest ink of 3x3 pixels, in part or wholly
  (Serra, "Image Analysis and Mathematical Morphology", 1982).
- Grain: 9 in 20 are resized to a quarter to a half of their side (7 to 14 of 28 pixels), rounded to 17 greys as in
  scikit-learn's digits, and enlarged again, bilinearly, bicubically or by the nearest pixel; 3 in 10 are blurred by a
  Gaussian of 0.4 to 1.6 pixels.
- Noise: 3 in 10 get Gaussian noise with a standard deviation of up to 0.25.
- Contrast: half are multiplied by 0.4 to 1.3.

Blur, noise and contrast are corruptions of Hendrycks and Dietterich, "Benchmarking Neural Network Robustness to Common
Corruptions", 2019: noise up to their severity 4, contrast down to their severity 1. The other ranges are guesses; test
images chose none. No loop over images: resizing, stretching and blurring are matrices.

With the elastic maps before them, the changes take 50 microseconds an image on a thread of a slow EPYC; 30 of these are
the maps'. That is 3 % of a training step of `vitbn`, 17 % of `vitbn-late-64` and 50 % of a single block of 32 narrow
heads. With a teacher's cache only the first training pays for them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

CHANGED = 0.6  # of the images; the shares below are of these
STRETCHED, STRETCH = 0.3, (0.75, 1.25)
THINNER, THICKER = 0.3, 0.25
COARSE, BLURRED = 0.45, 0.3
GREYS = 17
SIGMA = (0.4, 1.6)  # pixels
NOISY, NOISE = 0.3, 0.25
CONTRASTED, CONTRAST = 0.5, (0.4, 1.3)

Change = Callable[[Tensor], Tensor]


def pens(images: Tensor) -> Tensor:
    return _some(CHANGED, _pen, images)


def _pen(images: Tensor) -> Tensor:
    images = _some(STRETCHED, _stretched, images)
    images = _one_of(images, (THINNER, _thinner), (THICKER, _thicker))
    images = _one_of(images, (COARSE, _coarse), (BLURRED, _blurred))
    images = _some(NOISY, _noisy, images)
    return _some(CONTRASTED, _contrasted, images).clamp(0, 1)


def _some(share: float, change: Change, images: Tensor) -> Tensor:
    return _one_of(images, (share, change))


def _one_of(images: Tensor, *changes: tuple[float, Change]) -> Tensor:
    """Applies each change to its share of the images; no image gets two."""
    draw, reached, images = uniform(images, 0, 1), 0.0, images.clone()
    for share, change in changes:
        chosen = (draw >= reached) & (draw < reached + share)
        if chosen.any():
            images[chosen] = change(images[chosen])
        reached += share
    return images


def _stretched(images: Tensor) -> Tensor:
    rows, columns = (_stretches(side, _each(images, *STRETCH)) for side in images.shape[2:])
    return rows @ images @ columns.mT


def _stretches(side: int, factor: Tensor) -> Tensor:
    """Factors (B, 1, 1, 1) -> matrices (B, 1, side, side) that stretch a line of pixels about its middle, linearly."""
    position = torch.arange(side, dtype=factor.dtype, device=factor.device) - (side - 1) / 2
    return (1 - (position[:, None] / factor - position).abs()).clamp(min=0)


def _thinner(images: Tensor) -> Tensor:
    return images.lerp(-_largest(-images), _each(images, 0.2, 1.5).clamp(max=1))


def _thicker(images: Tensor) -> Tensor:
    return images.lerp(_largest(images), _each(images, 0.2, 1.5).clamp(max=1))


def _largest(images: Tensor) -> Tensor:
    """The largest of the 3x3 pixels around each pixel: as `max_pool2d`, in a twentieth of its time."""
    x = F.pad(images, (1, 1, 1, 1), value=-math.inf)
    x = torch.maximum(torch.maximum(x[..., :-2], x[..., 1:-1]), x[..., 2:])
    return torch.maximum(torch.maximum(x[..., :-2, :], x[..., 1:-1, :]), x[..., 2:, :])


def _coarse(images: Tensor) -> Tensor:
    rows, columns = (_resizings(side).to(images) for side in images.shape[2:])  # (kinds, 2, side / 2, side)
    kinds = torch.randint(len(rows), (len(images),), device=images.device)
    (shrink_rows, grow_rows), (shrink_columns, grow_columns) = (each[kinds].unbind(1) for each in (rows, columns))
    small = shrink_rows[:, None] @ images @ shrink_columns[:, None].mT  # (B, C, H / 2, W / 2)
    small = (small * (GREYS - 1)).round() / (GREYS - 1)
    return (grow_rows[:, None].mT @ small @ grow_columns[:, None]).clamp(0, 1)


@cache
def _resizings(side: int) -> Tensor:
    """(kinds, 2, side / 2, side): matrices that shrink, and the transposes of those that enlarge again."""
    kinds = []
    for size in (max(1, side * parts // 28) for parts in range(7, 15)):
        for shrink in ("area", "smooth", "points"):
            for grow in ("bilinear", "bicubic", "nearest"):
                pair = torch.zeros(2, max(1, side // 2), side)
                pair[0, :size] = _resizing(side, size, shrink)
                pair[1, :size] = _resizing(size, side, grow).T
                kinds.append(pair)
    return torch.stack(kinds)


def _resizing(side: int, size: int, mode: str) -> Tensor:
    """The matrix (size, side) that resizes a line of pixels."""
    lines, shape = torch.eye(side)[None, None], (size, side)
    if mode in ("area", "nearest"):
        return F.interpolate(lines, shape, mode=mode)[0, 0]
    kind: Literal["bicubic", "bilinear"] = "bicubic" if mode == "bicubic" else "bilinear"
    return F.interpolate(lines, shape, mode=kind, antialias=mode == "smooth")[0, 0]


def _blurred(images: Tensor) -> Tensor:
    sigma = _each(images, *SIGMA)
    by_side = {side: gaussians(side, sigma) for side in images.shape[2:]}
    rows, columns = (by_side[side] for side in images.shape[2:])
    return rows @ images @ columns.mT


def gaussians(side: int, sigma: Tensor) -> Tensor:
    """Sigmas (..., 1, 1) in pixels -> matrices (..., side, side) that blur a line of pixels."""
    position = torch.arange(side, device=sigma.device)
    by_distance = torch.exp(-(position**2) / (2 * sigma[..., 0] ** 2))  # (..., side)
    apart = (position[:, None] - position).abs().flatten()
    weights = by_distance.index_select(-1, apart).unflatten(-1, (side, side))  # (..., side, side)
    shares: Tensor = weights / weights.sum(dim=-1, keepdim=True)
    return shares


def _contrasted(images: Tensor) -> Tensor:
    return images * _each(images, *CONTRAST)


def _noisy(images: Tensor) -> Tensor:
    return images + torch.randn_like(images) * _each(images, 0, NOISE)


def uniform(images: Tensor, low: float, high: float, *shape: int) -> Tensor:
    """Random numbers for each image: (B, *shape)."""
    return images.new_empty(len(images), *shape).uniform_(low, high)


def _each(images: Tensor, low: float, high: float) -> Tensor:
    """A random number for each image: (B, 1, 1, 1)."""
    return uniform(images, low, high, 1, 1, 1)
