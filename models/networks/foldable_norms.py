"""Norms that are affine in eval mode, and so fold into the linear layer beside them.

In and out: tokens (B, N, D). Statistics are over all B*N tokens, per feature or, with `features` = 1, of all values.
gamma and beta (features,) are learned.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor, nn

from models.networks.config import ModelConfig, ModelName

Norm = Callable[[ModelConfig, int], nn.Module]
"""Configuration and number of features -> normalisation of tokens (B, N, features)."""
NormFactory = Callable[[int], nn.Module]
"""A Norm of one configuration."""

MOMENTUM = 0.1  # share of the newest batch in a running statistic
EPS = 1e-5
WINDOW = 4  # batches whose second moments UnifiedNorm averages
ANNEALED_AT = 0.8  # share of the training with LayerNorm, as in its authors' code


class NotAffine(Exception):
    pass


class NeverAffine(NotAffine):
    """No training makes the norm affine."""


class TokenNorm(nn.Module):
    def check_affine(self) -> None:
        """Raises NotAffine unless the norm is an affine map in eval mode, as the compiler folds it."""


class RowNorm(TokenNorm, ABC):
    """Normalises rows (B*N, features): the same statistics as after a transpose to (B, D, N), without its copy.

    Half precisions compute in float32.
    """

    def __init__(self, features: int) -> None:
        super().__init__()
        self.features = features

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, self.features)  # (B*N, D), or (B*N*D, 1)
        return self.normalise(rows).reshape(x.shape).to(x.dtype)  # (B, N, D)

    @abstractmethod
    def normalise(self, rows: Tensor) -> Tensor:
        """Rows (R, features) -> normalised rows (R, features)."""


class TokenBatchNorm(RowNorm):
    """BN(x) = gamma (x - mean) / sqrt(var + eps) + beta. Ioffe and Szegedy, "Batch Normalization", 2015."""

    def __init__(self, features: int) -> None:
        super().__init__(features)
        self.norm = nn.BatchNorm1d(features)

    def normalise(self, rows: Tensor) -> Tensor:
        normed: Tensor = self.norm(rows)
        return normed


class RepBN(RowNorm):
    """BN(x) + a x with a learned number a: in eval mode the scale gamma / sqrt(var + eps) + a.

    Guo et al., "SLAB: Efficient Transformers", ICML 2024, equation 5. a starts at 0, plain BatchNorm.
    """

    def __init__(self, features: int) -> None:
        super().__init__(features)
        self.norm = nn.BatchNorm1d(features)
        self.skip = nn.Parameter(torch.zeros(1))

    def normalise(self, rows: Tensor) -> Tensor:
        normed: Tensor = self.norm(rows) + self.skip * rows
        return normed


class ProgressiveRepBN(TokenNorm):
    """w LN(x) + (1 - w) RepBN(x); w falls linearly from 1 to 0 over the first 0.8 of the training (`anneal`).

    Guo et al., ICML 2024, equations 3 and 4. Checkpoints keep w as extra state.
    """

    def __init__(self, dim: int, features: int) -> None:
        super().__init__()
        self.layer_norm = nn.LayerNorm(dim)
        self.batch_norm = RepBN(features)
        self.layer_norm_share = 1.0

    def forward(self, x: Tensor) -> Tensor:
        share = self.layer_norm_share
        if share == 0:
            y: Tensor = self.batch_norm(x)
            return y
        mixed: Tensor = share * self.layer_norm(x) + (1 - share) * self.batch_norm(x)  # (B, N, D)
        return mixed

    def check_affine(self) -> None:
        if self.layer_norm_share > 0:
            raise NotAffine(
                f"expected no LayerNorm left in the mixture, found a share of {self.layer_norm_share:.3g}; "
                "train to the end"
            )

    def get_extra_state(self) -> Tensor:
        return torch.tensor(self.layer_norm_share, dtype=torch.float64)

    def set_extra_state(self, state: Tensor) -> None:
        self.layer_norm_share = float(state)


class UnifiedNorm(RowNorm):
    """y = gamma x / sqrt(v + eps) + beta, v the mean square of each feature. Yang et al., "Unified Normalization", ACM
    Multimedia 2022.

    In training v is the geometric mean over four batches, in eval mode its running mean. In v only the newest batch has
    gradients. The paper's gradient averaging and outlier filter are missing.
    """

    def __init__(self, features: int) -> None:
        super().__init__(features)
        self.weight = nn.Parameter(torch.ones(features))
        self.bias = nn.Parameter(torch.zeros(features))
        self.running_square: Tensor
        self.log_squares: Tensor
        self.num_batches_tracked: Tensor
        self.register_buffer("running_square", torch.ones(features))
        self.register_buffer("log_squares", torch.zeros(WINDOW - 1, features))  # of earlier batches, newest first
        self.register_buffer("num_batches_tracked", torch.zeros((), dtype=torch.long))

    def normalise(self, rows: Tensor) -> Tensor:
        square = self._windowed_square(rows) if self.training else self.running_square
        return self.weight * rows * (square + EPS).rsqrt() + self.bias

    def _windowed_square(self, rows: Tensor) -> Tensor:
        """The window's geometric mean (features,); remembers this batch."""
        log_square = rows.to(self.running_square.dtype).square().mean(dim=0).clamp_min(EPS).log()  # (features,)
        before = self.log_squares[: min(int(self.num_batches_tracked), WINDOW - 1)]
        square = torch.cat((log_square[None], before)).mean(dim=0).exp()
        with torch.no_grad():
            self.log_squares.copy_(torch.cat((log_square[None], self.log_squares[:-1])))
            self.running_square.lerp_(square, 1.0 if self.num_batches_tracked == 0 else MOMENTUM)
            self.num_batches_tracked.add_(1)
        return square


class DynamicFeatureNorm(RowNorm):
    """y = gamma sum_k softmax(w)_k N_k(x) + beta with learned w.

    N_1 = (x - mean) / sqrt(var + eps), N_2 = (x - min) / (max - min + eps), N_3 = x, each by feature, with running
    statistics in eval mode. After Luo et al., "Switchable Normalization", ICLR 2019.
    """

    def __init__(self, features: int) -> None:
        super().__init__(features)
        self.weight = nn.Parameter(torch.ones(features))
        self.bias = nn.Parameter(torch.zeros(features))
        self.choice = nn.Parameter(torch.zeros(3))  # logits of z-score, min-max, identity
        self.z_score = nn.BatchNorm1d(features, eps=EPS, momentum=MOMENTUM, affine=False)
        self.running_min: Tensor
        self.running_max: Tensor
        self.register_buffer("running_min", torch.zeros(features))
        self.register_buffer("running_max", torch.ones(features))

    def normalise(self, rows: Tensor) -> Tensor:
        low, high = self._bounds(rows)
        z_score, min_max, identity = self.choice.softmax(0)
        mixed = z_score * self.z_score(rows) + min_max * (rows - low) / (high - low + EPS) + identity * rows
        y: Tensor = self.weight * mixed + self.bias
        return y

    def _bounds(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Minimum and maximum (features,); in training updates the running ones."""
        if not self.training:
            return self.running_min, self.running_max
        bounds = rows.amin(dim=0), rows.amax(dim=0)
        seen = self.z_score.num_batches_tracked  # batches before this batch
        for running, bound in zip((self.running_min, self.running_max), bounds, strict=True):
            running.lerp_(bound.detach().to(running.dtype), 1.0 if seen == 0 else MOMENTUM)
        return bounds


def anneal(model: nn.Module, progress: float) -> None:
    """Sets LayerNorm's share in every ProgressiveRepBN. `progress`: the finished share of the training."""
    for module in model.modules():
        if isinstance(module, ProgressiveRepBN):
            module.layer_norm_share = max(0.0, 1.0 - progress / ANNEALED_AT)


def features(config: ModelConfig, dim: int) -> int:
    """The number of statistics of a norm: one for each feature, or one for all."""
    return dim if config.bn_features == "dim" else 1


def by_feature(norm: type[RowNorm]) -> Norm:
    return lambda config, dim: norm(features(config, dim))


NORMS: dict[ModelName, Norm] = {
    "vit-repbn": by_feature(RepBN),
    "vit-prepbn": lambda config, dim: ProgressiveRepBN(dim, features(config, dim)),
    "vit-un": by_feature(UnifiedNorm),
    "vit-dfn": by_feature(DynamicFeatureNorm),
}
"""The norms that stand in place of each LayerNorm of a ViT."""
