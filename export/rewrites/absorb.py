"""The query takes up the key's weights, the output projection the value's."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from export.rewrites.errors import DoesNotApply, RewriteError
from export.rewrites.fold import FoldedEmbedding, linear
from models.costs import absorbed_attention_macs, attention_macs
from models.layers import (
    Attention,
    TokenEmbedding,
    absorbed_output,
    absorbed_query,
    first_rows,
    fused_attention,
)
from models.vit import VisionTransformer


def absorb_attention(model: nn.Module) -> nn.Module:
    """Makes the normalised tokens the keys and values of all heads, in each block where that is cheaper.

    `models.layers.Attention` has the equation. Where row 0, the only query, is the same for all images (at depth 1, and
    under class attention), it becomes a constant. Raises DoesNotApply if no block gets cheaper.
    """
    if not isinstance(model, VisionTransformer):
        raise DoesNotApply(f"{type(model).__name__}: there is no attention")
    rewritten, costs = copy.deepcopy(model), []
    for i, block in enumerate(rewritten.blocks.children()):
        attention, tokens = block.get_submodule("attention"), model.config.tokens(i)
        if type(attention) is not Attention:
            found = type(attention).__name__
            raise RewriteError(f"blocks.{i}.attention: expected Attention, found {found}")
        constant = None
        if attention.rows is not None and (i == 0 or model.config.class_attention is not None):
            constant = _cls_row(model.embedding)
        before, after = absorption_macs(attention, tokens, constant is not None)
        if after < before:
            block.add_module("attention", AbsorbedAttention(attention, tokens, constant))
        costs.append((before, after))
    if all(after >= before for before, after in costs):
        before, after = costs[0]
        config = model.config
        raise DoesNotApply(
            f"attention: absorbing costs {after:,} multiplications a block and image instead of {before:,} "
            f"(dim {config.dim}, {config.heads} heads of {config.dim_head}, {config.num_patches + 1} tokens)"
        )
    return rewritten


def absorption_macs(attention: Attention, tokens: int, constant: bool) -> tuple[int, int]:
    """Multiplications per image before and after; a `constant` query is free after."""
    dim, heads = attention.qkv.in_features, attention.heads
    if attention.rows is None:
        before = attention_macs(tokens, dim, heads, attention.dim_head)
        return before, absorbed_attention_macs(tokens, dim, heads)
    inner = heads * attention.dim_head
    output = 0 if isinstance(attention.out, nn.Identity) else inner * dim
    before = dim * inner + 2 * tokens * (dim + 1) * inner + output
    return before, (1 if constant else 2) * heads * dim**2 + 2 * tokens * heads * dim


class Constant(nn.Module):
    def __init__(self, value: Tensor) -> None:
        super().__init__()
        self.value: Tensor
        self.register_buffer("value", value.detach().clone())

    def forward(self, x: Tensor) -> Tensor:
        return self.value


class AbsorbedAttention(nn.Module):
    """(B, N, D) -> (B, N, D), or with `rows` (B, rows, D); without the residual."""

    def __init__(self, attention: Attention, tokens: int, constant: Tensor | None) -> None:
        """`constant`: row 0 of all images, (1, 1, D)."""
        super().__init__()
        self.heads, self.rows, self.fused = attention.heads, attention.rows, False
        self.queries = attention.rows or tokens
        self.norm = attention.norm
        (query, query_bias), (key, _), (value, value_bias) = attention.projections()
        weight = absorbed_query(query.data, key.data, self.heads)
        bias = None if query_bias is None else absorbed_query(query_bias.data[:, None], key.data, self.heads)[:, 0]
        self.query: nn.Module = linear(weight, bias)
        if constant is not None:
            with torch.no_grad():
                self.query = Constant(self.query(self.norm(constant)))  # (1, 1, H*D)
        weight, bias = absorbed_output(attention.out, value, value_bias, self.heads)
        self.out = linear(weight.data, bias.data)  # H*D -> D

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(x)
        query = self.query(first_rows(x, self.rows)).reshape(-1, self.queries * self.heads, x.shape[-1])  # no copy
        if self.fused:
            query = query.expand(x.shape[0], -1, -1)[:, None]  # (B, 1, N*H, D)
            means = fused_attention(query, x[:, None], x[:, None], scale=1.0)
        else:
            means = (query @ x.transpose(1, 2)).softmax(dim=-1) @ x  # (B, N*H, D)
        y: Tensor = self.out(means.reshape(-1, self.queries, self.heads * x.shape[-1]))  # (B, N, D)
        return y


def _cls_row(embedding: nn.Module) -> Tensor:
    """Row 0 as it enters its first block, (1, 1, D)."""
    if isinstance(embedding, FoldedEmbedding):
        return embedding.rows.data[:, :1]
    if isinstance(embedding, TokenEmbedding):
        return embedding.cls_token.data + embedding.pos_embedding.data[:, :1]
    raise RewriteError(f"embedding: expected TokenEmbedding or FoldedEmbedding, found {type(embedding).__name__}")
