"""Norms and the 1/255 of the pixels fold into the linear layers beside them."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from export.rewrites.errors import DoesNotApply, RewriteError
from models.cnn import CNN
from models.config import INPUT_SCALE
from models.dnn import DNN
from models.layers import TokenEmbedding
from models.norms import NeverAffine, NotAffine, TokenNorm, batch_norm_affine
from models.registry import Network
from models.vit import VisionTransformer

BATCH_NORMS = nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d


@dataclass(frozen=True)
class Fold:
    """`norm` stands on this `side` of the `linear` layer that takes it up."""

    norm: str
    linear: str
    side: Literal["before", "after"]


def fold_batchnorm(model: nn.Module) -> nn.Module:
    """Folds every BatchNorm, and LayerNorms' gamma and beta, into the linear layers beside them.

    In eval mode BN(x) = Dx + c with D = diag(gamma / sqrt(var + eps)), c = beta - mean gamma / sqrt(var + eps), so
    BN(Wx + b) = (DW) x + (Db + c) and W(Dx + c) + b = (WD) x + (Wc + b). `models.norms` has D and c of other norms.
    A LayerNorm is D n(x) + c with D = gamma, c = beta; its bare normalisation n stays.

    Raises RewriteError for a BatchNorm in training mode, without running statistics or a linear layer beside it; for
    shared weights, non-finite numbers, negative variances and a norm that is not affine yet. Raises DoesNotApply for a
    norm that is never affine.
    """
    if not isinstance(model, Network):
        raise RewriteError(f"{type(model).__name__}: expected a transformer, CNN or DNN of this project")
    dtype = next(model.parameters()).dtype
    folded = copy.deepcopy(model).double()
    _check_weights_are_not_shared(folded)
    _check_numbers(folded)
    for fold in _fold_plan(folded):
        _apply(folded, fold)
    for name, module in folded.named_modules():
        if isinstance(module, TokenNorm | BATCH_NORMS):
            raise RewriteError(f"{name}: expected a linear layer beside this {type(module).__name__}, found none")
    if isinstance(folded, VisionTransformer):
        bias = folded.patch_embedding.get_parameter("bias")
        stays = not isinstance(folded.embedding_norm, nn.Identity)
        folded.embedding = FoldedEmbedding(folded.embedding, torch.zeros_like(bias) if stays else bias)
        if not stays:
            folded.patch_embedding.register_parameter("bias", None)
    return folded.to(dtype)


def fold_input_scale(model: nn.Module) -> nn.Module:
    """Folds the 1/255 into the first layer: the network then reads pixels of 0 to 255.

    A LayerNorm takes it into its eps: n(sx; eps) = n(x; eps / s^2). Raises DoesNotApply if a BatchNorm comes first.
    """
    scaled = copy.deepcopy(model)
    first = _first_layer(scaled)
    if isinstance(first, nn.LayerNorm):
        first.eps /= INPUT_SCALE**2
    elif isinstance(first, nn.Linear | nn.Conv2d):
        first.weight.data *= INPUT_SCALE
    else:
        raise DoesNotApply(f"first layer: expected LayerNorm, Linear or Conv2d, found {type(first).__name__}")
    return scaled


class FoldedEmbedding(nn.Module):
    """`TokenEmbedding` as one table: CLS token with position, then positions with patch bias."""

    def __init__(self, embedding: nn.Module, patch_bias: Tensor) -> None:
        super().__init__()
        if not isinstance(embedding, TokenEmbedding):
            raise RewriteError(f"embedding: expected TokenEmbedding, found {type(embedding).__name__}")
        self.joins_late = embedding.joins_late
        rows = embedding.pos_embedding.data.clone()
        rows[:, :1] += embedding.cls_token.data
        rows[:, 1:] += patch_bias.data
        self.rows: Tensor
        self.register_buffer("rows", rows)  # (1, N, D)

    def join(self, x: Tensor) -> Tensor:
        return torch.cat((self.rows[:, :1].expand(x.shape[0], -1, -1), x), dim=1)  # (B, N, D)

    def forward(self, x: Tensor) -> Tensor:
        if self.joins_late:
            return x + self.rows[:, 1:]  # (B, N-1, D)
        return F.pad(x, (0, 0, 1, 0)) + self.rows  # (B, N, D)


def _fold_plan(model: Network) -> Iterator[Fold]:
    """LayerNorms after the patch embedding stay: no linear layer follows them."""
    if isinstance(model, CNN):
        yield from (Fold(f"norm{n}", f"conv{n}", "after") for n in (1, 2, 3))
        yield Fold("normfc", "fc1", "after")
        return
    if isinstance(model, DNN):
        yield from (Fold(f"norm{n}", f"linear{n}", "after") for n in (1, 2, 3))
        return
    yield Fold("patch_norm", "patch_embedding", "before")
    if isinstance(model.embedding_norm, TokenNorm):
        yield Fold("embedding_norm", "patch_embedding", "after")
    for i in range(len(model.blocks)):
        yield Fold(f"blocks.{i}.attention.norm", f"blocks.{i}.attention.qkv", "before")
        yield Fold(f"blocks.{i}.ffn.norm", f"blocks.{i}.ffn.linear1", "before")
        yield Fold(f"blocks.{i}.ffn.hidden_norm", f"blocks.{i}.ffn.linear1", "after")
    yield Fold("norm", "head", "before")  # commutes with taking the CLS row and the mean over tokens


def _apply(model: nn.Module, fold: Fold) -> None:
    norm, linear = model.get_submodule(fold.norm), model.get_submodule(fold.linear)
    if isinstance(norm, nn.Identity):
        return
    if not isinstance(linear, nn.Linear | nn.Conv2d):
        raise RewriteError(f"{fold.norm}: expected a linear layer at {fold.linear}, found {type(linear).__name__}")
    scale, shift = affine_of(fold.norm, norm)
    bias = linear.bias.data if linear.bias is not None else torch.zeros(len(linear.weight), dtype=torch.float64)
    if fold.side == "after":
        weight = linear.weight.data * scale.reshape(-1, *[1] * (linear.weight.ndim - 1))
        bias = bias * scale + shift
    else:
        weight = linear.weight.data * scale
        bias = bias + linear.weight.data @ shift.expand(linear.weight.shape[1])
    linear.weight.data = weight
    linear.bias = nn.Parameter(bias)
    model.set_submodule(fold.norm, _bare(norm))


def affine_of(name: str, norm: nn.Module) -> tuple[Tensor, Tensor]:
    """Scale and shift, each (features,) or (1,). Raises RewriteError if the norm is not affine."""
    if isinstance(norm, nn.LayerNorm):
        return norm.weight.data, norm.bias.data
    if not isinstance(norm, TokenNorm | BATCH_NORMS):
        raise RewriteError(f"{name}: expected a norm of this project, found {type(norm).__name__}")
    if norm.training:
        raise RewriteError(f"{name}: expected eval mode, found training mode; call model.eval()")
    try:
        return norm.eval_affine() if isinstance(norm, TokenNorm) else batch_norm_affine(norm)
    except NeverAffine as reason:
        raise DoesNotApply(f"{name}: {reason}") from reason
    except NotAffine as reason:
        raise RewriteError(f"{name}: {reason}") from reason


def _bare(norm: nn.Module) -> nn.Module:
    if isinstance(norm, nn.LayerNorm):
        return nn.LayerNorm(norm.normalized_shape, eps=norm.eps, elementwise_affine=False)
    return nn.Identity()


def _first_layer(model: nn.Module) -> nn.Module:
    names = ("input_norm", "patch_norm", "patch_embedding", "conv1", "linear1")
    layers: dict[str, nn.Module] = dict(model.named_modules())
    return next(layers[name] for name in names if name in layers and not isinstance(layers[name], nn.Identity))


def _check_weights_are_not_shared(model: nn.Module) -> None:
    owners: dict[int, str] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if (first := owners.setdefault(id(parameter), name)) != name:
            raise RewriteError(f"{name}: expected a weight of its own, found the weight of {first}")


def _check_numbers(model: nn.Module) -> None:
    for name, tensor in model.state_dict().items():
        if not tensor.isfinite().all():
            found = tensor[~tensor.isfinite()].flatten()[0].item()
            raise RewriteError(f"{name}: expected finite numbers, found {found}")
        if name.endswith(("running_var", "running_square")) and (tensor < 0).any():
            raise RewriteError(f"{name}: expected variances of at least 0, found {tensor.min().item()}")


def linear(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    """Weight (out, in), bias (out,); keeps their dtype."""
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, dtype=weight.dtype)
    layer.weight.data = weight.contiguous()
    if bias is not None:
        layer.bias.data = bias
    return layer
