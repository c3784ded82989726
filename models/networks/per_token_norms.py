"""Norms with statistics of each image, for comparison: never affine, so the fold refuses them.

In and out: tokens (B, N, D). gamma and beta (D,) are learned.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from models.networks.config import ModelName
from models.networks.foldable_norms import EPS, NeverAffine, Norm, TokenNorm


class GainedTokenNorm(TokenNorm, ABC):
    """gamma n(x) + beta with learned gamma and beta; a sub-class defines n as `normalise`."""

    reason = "it has statistics of each token"

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.bias = nn.Parameter(torch.zeros(dim))

    def forward(self, x: Tensor) -> Tensor:
        return (self.weight * self.normalise(x.to(self.weight.dtype)) + self.bias).to(x.dtype)  # (B, N, D)

    @abstractmethod
    def normalise(self, x: Tensor) -> Tensor:
        """n(x) of tokens (B, N, D)."""

    def check_affine(self) -> None:
        raise NeverAffine(f"expected an affine map in eval mode, found {type(self).__name__}: {self.reason}")


class TokenMinMax(GainedTokenNorm):
    """n(x) = (x - min x) / (max x - min x + eps) over a token's D features."""

    def normalise(self, x: Tensor) -> Tensor:
        low, high = x.amin(dim=-1, keepdim=True), x.amax(dim=-1, keepdim=True)  # (B, N, 1)
        return (x - low) / (high - low + EPS)


class TokenZScore(GainedTokenNorm):
    """n(x) = (x - mean x) / (std x + eps) over a token's D features; std divides by D - 1.

    LayerNorm divides by D, with eps under the root.
    """

    def normalise(self, x: Tensor) -> Tensor:
        return (x - x.mean(dim=-1, keepdim=True)) / (x.std(dim=-1, keepdim=True) + EPS)


class DynamicTokenNorm(GainedTokenNorm):
    """n(x) = (x - mu) / sqrt(s + eps): a token's mean and variance mix with its neighbours'.

    Shao et al., "Dynamic Token Normalization", ICLR 2022. First each head of a token is divided by its root mean
    square, as in the authors' code. Then, for a head X (N, D/H) and learned l, l' in (0, 1):

        mu = l mean(token) + (1 - l) P X,    s = l' var(token) + (1 - l') (P X^2 - (P X)^2)

    P = softmax(R a) by rows, R_ij = (dx, dy, dx^2 + dy^2) between patches i and j, a (3,) learned per head. The CLS
    token, which the paper lacks, has no position: it weighs all tokens alike, and no patch sees it.
    """

    reason = "it has statistics of each image"

    def __init__(self, dim: int, heads: int, grid: tuple[int, int]) -> None:
        super().__init__(dim)
        self.heads = math.gcd(heads, dim)
        self.patches = grid[0] * grid[1]
        self.mean_share = nn.Parameter(torch.zeros(self.heads))  # logits of l
        self.var_share = nn.Parameter(torch.zeros(self.heads))  # logits of l'
        self.gaze = nn.Parameter(first_gaze(self.heads))  # a: (H, 3)
        self.offsets: Tensor
        self.seen: Tensor
        offsets, seen = neighbourhood(grid)
        self.register_buffer("offsets", offsets, persistent=False)  # R: (N, N, 3)
        self.register_buffer("seen", seen, persistent=False)  # (N, N)

    def normalise(self, x: Tensor) -> Tensor:
        images, tokens, dim = x.shape
        heads = x.reshape(images, tokens, self.heads, -1)  # (B, N, H, D/H)
        heads = heads * (heads.square().mean(dim=-1, keepdim=True) + EPS).rsqrt()
        x = heads.flatten(2)  # (B, N, D)
        heads = heads.transpose(1, 2)  # (B, H, N, D/H)
        weights = self._weights(with_cls=tokens > self.patches)  # (H, N, N)
        near_mean = weights @ heads  # (B, H, N, D/H)
        near_var = (weights @ heads.square() - near_mean.square()).clamp_min(0)
        own_mean = x.mean(dim=-1)[:, None, :, None]  # (B, 1, N, 1)
        own_var = x.var(dim=-1, correction=0)[:, None, :, None]
        mean_share, var_share = (share.sigmoid()[:, None, None] for share in (self.mean_share, self.var_share))
        mean = mean_share * own_mean + (1 - mean_share) * near_mean
        var = var_share * own_var + (1 - var_share) * near_var
        normed = (heads - mean) * (var + EPS).rsqrt()
        return normed.transpose(1, 2).reshape(images, tokens, dim)  # (B, N, D)

    def _weights(self, with_cls: bool) -> Tensor:
        """P: (H, N, N), or (H, N-1, N-1) without the CLS token."""
        first = 0 if with_cls else 1
        scores = (self.offsets[first:, first:] @ self.gaze.T).permute(2, 0, 1)  # (H, N, N)
        return scores.masked_fill(~self.seen[first:, first:], -torch.inf).softmax(dim=-1)


def first_gaze(heads: int) -> Tensor:
    """The initial `gaze`, (H, 3): head h first attends to the patch at its own offset c, in a square around the token.

    The score of an offset d is -(d - c)^2 = -d^2 + 2 c d - c^2; the softmax ignores the last term.
    """
    side = math.isqrt(heads)
    head = torch.arange(side * side)
    dy, dx = head // side - (side - 1) / 2, head % side - (side - 1) / 2
    gaze = torch.stack((2.0 * dx, 2.0 * dy, -torch.ones(side * side)), dim=1)
    return nn.functional.pad(gaze, (0, 0, 0, heads - side * side))


def neighbourhood(grid: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """For N = height * width + 1 tokens, CLS first: offsets (dx, dy, dx^2 + dy^2) float32 (N, N, 3), and whether token
    i sees token j, bool (N, N).
    """
    height, width = grid
    y, x = (axis.flatten() for axis in torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij"))
    dx, dy = x[None] - x[:, None], y[None] - y[:, None]  # (N-1, N-1)
    patches = torch.stack((dx, dy, dx**2 + dy**2), dim=-1).float()
    offsets = nn.functional.pad(patches, (0, 0, 1, 0, 1, 0))  # (N, N, 3), 0 for the CLS token
    seen = torch.ones(len(offsets), len(offsets), dtype=torch.bool)
    seen[1:, 0] = False
    return offsets, seen


NORMS: dict[ModelName, Norm] = {
    "vit-dtn": lambda config, dim: DynamicTokenNorm(dim, config.heads, config.grid),
    "vit-minmax": lambda config, dim: TokenMinMax(dim),
    "vit-zscore": lambda config, dim: TokenZScore(dim),
}
"""The norms that stand in place of each LayerNorm of a ViT."""
