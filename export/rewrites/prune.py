"""The last block computes only the row that the head reads."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from export.rewrites.errors import DoesNotApply, RewriteError
from export.rewrites.fold import FoldedEmbedding, linear
from models.layers import Attention, TokenEmbedding, fused_attention
from models.norms import TokenNorm
from models.vit import VisionTransformer


def cls_only(model: nn.Module) -> nn.Module:
    """Only the keys and values of the last block need every row.

    At depth 1, and with late CLS, row 0 enters the block as a constant, so its query is constant too. Raises
    DoesNotApply.
    """
    if not isinstance(model, VisionTransformer):
        raise DoesNotApply(f"{type(model).__name__}: there is no CLS token")
    if model.config.pool != "cls":
        raise DoesNotApply(f"head: expected pool 'cls', found {model.config.pool!r}, which reads every row")
    rewritten = copy.deepcopy(model)
    last = len(rewritten.blocks) - 1
    for name in (f"blocks.{last}.ffn.norm", f"blocks.{last}.ffn.hidden_norm", "norm"):
        norm = rewritten.get_submodule(name)
        if isinstance(norm, TokenNorm) and norm.mixes_tokens:
            found = type(norm).__name__
            raise DoesNotApply(f"{name}: expected a norm of each row alone, found {found}, which reads the others")
    block = rewritten.get_submodule(f"blocks.{last}")
    if isinstance(block, ClsBlock):
        raise RewriteError(f"blocks.{last}: expected every row, found the CLS row alone already")
    if type(block.attention) is not Attention:
        found = type(block.attention).__name__
        raise RewriteError(f"blocks.{last}.attention: expected Attention, found {found}; cls_only comes first")
    row: nn.Module = FirstRow()
    attention = ClsAttention(block.attention)
    if last == 0 or model.config.late_cls is not None:
        constant = _cls_row(rewritten.embedding)  # (1, 1, D)
        row = Constant(constant)
        with torch.no_grad():
            attention.query = Constant(attention.query(attention.norm(constant)))
    rewritten.blocks[last] = ClsBlock(row, attention, block.get_submodule("ffn"))
    return rewritten


class RowBlock(nn.Module):
    """A last block for row 0. `residual` returns the row or, after `merge_head`, its logits."""

    def __init__(self, ffn: nn.Module) -> None:
        super().__init__()
        self.ffn = ffn
        self.residual: nn.Module = nn.Identity()

    def close(self, row: Tensor) -> Tensor:
        """(..., D) after the attention -> after the block, or logits (..., num_classes)."""
        y: Tensor = self.residual(row) + self.ffn(row)
        return y


class ClsBlock(RowBlock):
    """(B, N, D) -> (B, 1, D)."""

    def __init__(self, row: nn.Module, attention: nn.Module, ffn: nn.Module) -> None:
        super().__init__(ffn)
        self.row, self.attention = row, attention

    def forward(self, x: Tensor) -> Tensor:
        return self.close(self.row(x) + self.attention(x))  # (B, 1, D)


class FirstRow(nn.Module):
    """(B, N, D) -> (B, 1, D)."""

    def forward(self, x: Tensor) -> Tensor:
        return x[:, :1]


class Constant(nn.Module):
    def __init__(self, value: Tensor) -> None:
        super().__init__()
        self.value: Tensor
        self.register_buffer("value", value.detach().clone())

    def forward(self, x: Tensor) -> Tensor:
        return self.value


class ClsAttention(nn.Module):
    """`Attention` of row 0: (B, N, D) -> (B, 1, D). The softmax ignores a key bias."""

    def __init__(self, attention: Attention) -> None:
        super().__init__()
        self.heads, self.dim_head, self.scale = attention.heads, attention.dim_head, attention.scale
        self.fused = False
        self.norm, self.out = attention.norm, attention.out
        self.query: nn.Module
        self.query, self.key, self.value = projections(attention)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(x)
        q, k, v = (
            part.unflatten(-1, (self.heads, self.dim_head)).transpose(1, 2)  # (B, H, 1 or N, E)
            for part in (self.query(x[:, :1]), self.key(x), self.value(x))
        )
        if self.fused:
            row = fused_attention(q.expand(k.shape[0], -1, -1, -1), k, v, self.scale)  # (B, H, 1, E)
        else:
            row = (q @ k.transpose(-1, -2) * self.scale).softmax(dim=-1) @ v  # (B, H, 1, E)
        y: Tensor = self.out(row.transpose(1, 2).flatten(2))  # (B, 1, D)
        return y


def projections(attention: Attention) -> tuple[nn.Linear, nn.Linear, nn.Linear]:
    """Of queries, keys (without bias) and values."""
    query, key, value = attention.qkv.weight.data.chunk(3)
    biases = [None] * 3 if attention.qkv.bias is None else attention.qkv.bias.data.chunk(3)
    return linear(query, biases[0]), linear(key, None), linear(value, biases[2])


def _cls_row(embedding: nn.Module) -> Tensor:
    """Row 0 as it enters its first block, (1, 1, D)."""
    if isinstance(embedding, FoldedEmbedding):
        return embedding.rows.data[:, :1]
    if isinstance(embedding, TokenEmbedding):
        return embedding.cls_token.data + embedding.pos_embedding.data[:, :1]
    raise RewriteError(f"embedding: expected TokenEmbedding or FoldedEmbedding, found {type(embedding).__name__}")
