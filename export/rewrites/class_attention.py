"""Under class attention the CLS token stays apart from the patches, so their tokens are not copied."""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from export.rewrites.absorb import AbsorbedAttention, Constant
from export.rewrites.errors import DoesNotApply
from export.rewrites.fold import FoldedEmbedding, linear
from models.layers import Block
from models.vit import VisionTransformer


def keep_cls_apart(model: nn.Module) -> nn.Module:
    """Replaces the CLS token by a constant score and a constant output per head.

    Row 0 of the last block is a constant c and so is its query q_h. With x_j the patches' tokens and A the softmax over
    all scores:

        score_h0 = q_h' c,   score_hj = q_h' x_j
        row      = sum_h Wov_h sum_j>0 A_hj x_j + sum_h A_h0 (Wov_h c) + (c + the bias of the output)

    A norm before the attention treats each row separately and stays first. Raises DoesNotApply.
    """
    if not isinstance(model, VisionTransformer):
        raise DoesNotApply(f"{type(model).__name__}: there is no CLS token")
    last = f"blocks.{len(model.blocks) - 1}"
    block = model.get_submodule(last)
    if not (
        model.config.class_attention is not None
        and isinstance(block.attention, AbsorbedAttention)
        and isinstance(block.attention.query, Constant)
        and isinstance(model.embedding, FoldedEmbedding)
    ):
        raise DoesNotApply(f"{last}: expected class attention, norms folded, attention absorbed, for the CLS row")
    apart = copy.deepcopy(model)
    rows = model.embedding.rows.data
    apart.set_submodule(last, ClassBlock(copy.deepcopy(block), rows[:, :1], model.config.num_patches))
    apart.set_submodule("embedding", PatchPositions(rows[:, 1:]))
    return apart


class PatchPositions(nn.Module):
    """Adds the patches' rows of `FoldedEmbedding`: (B, M, D) -> (B, M, D)."""

    def __init__(self, rows: Tensor) -> None:
        super().__init__()
        self.rows: Tensor
        self.register_buffer("rows", rows.clone())  # (1, M, D)

    def join(self, x: Tensor) -> Tensor:
        return x

    def forward(self, x: Tensor) -> Tensor:
        return x + self.rows


class ClassBlock(Block):
    """A constant row over the patches' tokens: (B, M, D) -> (B, 1, D)."""

    def __init__(self, block: nn.Module, cls_row: Tensor, patches: int) -> None:
        super().__init__(nn.Identity(), block.get_submodule("ffn"))
        self.norm = block.get_submodule("attention.norm")
        with torch.no_grad():
            key = self.norm(cls_row).flatten()  # (D,)
        query = block.get_buffer("attention.query.value").reshape(1, -1, len(key))  # (1, H, D)
        out = block.get_submodule("attention.out")
        weight, constant = out.get_parameter("weight").data, cls_row.flatten()
        if out.bias is not None:
            constant = constant + out.get_parameter("bias").data
        self.query: Tensor
        self.scores: Tensor
        self.register_buffer("query", query)
        self.register_buffer("scores", F.pad(query @ key[:, None], (patches, 0)))  # (1, H, M+1), 0 for patches
        self.out = linear(weight, None)  # H*D -> D
        self.cls = linear(weight.unflatten(1, (-1, len(key))) @ key, constant)  # H -> D

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(x)
        weights = (F.pad(self.query @ x.transpose(1, 2), (0, 1)) + self.scores).softmax(dim=-1)  # (B, H, M+1)
        pooled = weights[:, :, :-1] @ x  # (B, H, D)
        row = self.out(pooled.flatten(1)) + self.cls(weights[:, :, -1])  # (B, D)
        return self.close(row)[:, None]  # (B, 1, D)
