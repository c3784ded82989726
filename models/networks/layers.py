"""Transformer layers; the norm is injected (models/networks/foldable_norms.py).

Shapes: B images, N tokens, D features, H heads of size E.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.networks.config import ModelConfig
from models.networks.foldable_norms import NormFactory


class TokenEmbedding(nn.Module):
    """Puts the CLS token first and adds positions: (B, N-1, D) -> (B, N, D).

    Under class attention the CLS token is left out; `join` adds it before the last block.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.joins_late = config.class_attention is not None
        tokens = config.num_patches + 1
        self.cls_token = nn.Parameter(torch.randn(1, 1, config.dim))
        self.pos_embedding: Tensor
        if config.pos_emb == "pe1d":
            self.register_buffer("pos_embedding", sinusoidal_positions(tokens, config.dim), persistent=False)
        else:
            self.pos_embedding = nn.Parameter(torch.randn(1, tokens, config.dim))
        self.dropout = nn.Dropout(config.emb_dropout)

    def join(self, x: Tensor) -> Tensor:
        """Tokens before the last block (B, N-1, D) or (B, N, D) -> (B, N, D)."""
        if not self.joins_late:
            return x
        cls_token = (self.cls_token + self.pos_embedding[:, :1]).expand(x.shape[0], -1, -1)  # (B, 1, D)
        return torch.cat((self.dropout(cls_token), x), dim=1)

    def forward(self, x: Tensor) -> Tensor:
        if self.joins_late:
            patches: Tensor = self.dropout(x + self.pos_embedding[:, 1:])  # (B, N-1, D)
            return patches
        cls_token = self.cls_token.expand(x.shape[0], -1, -1)  # (B, 1, D)
        x = torch.cat((cls_token, x), dim=1) + self.pos_embedding  # (B, N, D)
        y: Tensor = self.dropout(x)
        return y


def sinusoidal_positions(tokens: int, dim: int) -> Tensor:
    """Rows [sin(n w_k), cos(n w_k)], w_k = 10000^(-k / (D/2)), k = 1..D/2: float32 (1, tokens, dim).

    Vaswani et al., "Attention Is All You Need", 2017, with the study's frequencies.
    """
    half = dim // 2
    frequencies = 10000.0 ** (-torch.arange(1, half + 1, dtype=torch.float64) / half)  # (D/2,)
    angles = torch.arange(tokens, dtype=torch.float64)[:, None] * frequencies  # (N, D/2)
    return torch.cat((angles.sin(), angles.cos()), dim=1).float()[None]  # (1, N, D)


class Attention(nn.Module):
    """Norm and multi-head self-attention, without the residual: (B, N, D) -> (B, N, D)."""

    def __init__(self, config: ModelConfig, norm: NormFactory) -> None:
        super().__init__()
        self.heads = config.heads
        self.dim_head = config.dim_head
        self.scale = config.dim_head**-0.5
        width = config.heads * config.dim_head
        self.norm = norm(config.dim)
        self.qkv = nn.Linear(config.dim, 3 * width, bias=config.qkv_bias)  # rows q, k, v; each head-major
        self.attention_dropout = nn.Dropout(config.dropout)
        projects = not (config.heads == 1 and config.dim_head == config.dim)
        self.out: nn.Module = nn.Linear(width, config.dim) if projects else nn.Identity()
        self.out_dropout: nn.Module = nn.Dropout(config.dropout) if projects else nn.Identity()

    def queried(self, x: Tensor) -> Tensor:
        """The tokens (B, N, D) that have a query; the residual adds them to the attention's output."""
        return x

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.out_dropout(self.mix(self.norm(x)))
        return y

    def mix(self, x: Tensor) -> Tensor:
        """Normalised tokens (B, N, D) -> (B, N, D)."""
        q, k, v = (
            part.unflatten(-1, (self.heads, self.dim_head)).transpose(1, 2)  # (B, H, N, E)
            for part in self.qkv(x).chunk(3, dim=-1)
        )
        y: Tensor = self.out(self.attend(q, k, v).transpose(1, 2).flatten(2))  # (B, N, D)
        return y

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Queries, keys and values, each (B, H, N, E) -> (B, H, N, E)."""
        scores = q @ k.transpose(-1, -2) * self.scale  # (B, H, N, N)
        heads: Tensor = self.attention_dropout(scores.softmax(dim=-1)) @ v  # (B, H, N, E)
        return heads


class AbsorbedAttention(Attention):
    """Computes the same as `Attention` with less work: the normalised tokens are keys and values of all heads.

    For head h with weights Wq, Wk, Wv (E x D) and its columns Wo_h (D x E) of the output projection, s = 1/sqrt(E):

        score_ij = s (Wq x_i + bq)'(Wk x_j + bk) = (s Wk'Wq x_i + s Wk'bq)' x_j + (terms free of j)
        out_i    = sum_h (Wo_h Wv_h)(A_h X)_i + (sum_h Wo_h bv_h + bo)

    The softmax over j ignores terms free of j. Its rows sum to one, so the value bias is a constant.

    `row`: only token 0 has a query, (B, N, D) -> (B, 1, D). `shared_query`: token 0 is the same for all images, so one
    image's query serves the batch.
    """

    def __init__(self, config: ModelConfig, norm: NormFactory, row: bool = False, shared_query: bool = False) -> None:
        super().__init__(config, norm)
        self.row, self.shared_query = row, shared_query

    def queried(self, x: Tensor) -> Tensor:
        return x[:, :1] if self.row else x

    def mix(self, x: Tensor) -> Tensor:
        if self.row:
            return self._mix_row(x)
        (query, query_bias), (key, _), (value, value_bias) = self._projections()
        if self.training and self.attention_dropout.p > 0 and value_bias is not None:
            return super().mix(x)  # after dropout the weights do not sum to one
        tokens, dim = x.shape[1:]
        if query_bias is not None:
            query_bias = absorbed_query(query_bias[:, None], key, self.heads)[:, 0]
        queries = F.linear(x, absorbed_query(query, key, self.heads), query_bias)  # (B, N, H*D)
        scores = queries.reshape(-1, tokens * self.heads, dim) @ x.transpose(1, 2)  # (B, N*H, N)
        means = (self.attention_dropout(scores.softmax(dim=-1)) @ x).reshape(-1, tokens, self.heads * dim)
        return F.linear(means, *absorbed_output(self.out, value, value_bias, self.heads))  # (B, N, D)

    def _mix_row(self, x: Tensor) -> Tensor:
        """Tokens (B, N, D) -> attention of token 0, (B, 1, D); projects no token to a key or value."""
        (query, query_bias), (key, _), (value, value_bias) = self._projections()
        queries = F.linear(x[: 1 if self.shared_query else None, 0], query, query_bias)  # (B or 1, H*E)
        queries = absorbed_query(queries.T, key, self.heads).T.unflatten(1, (self.heads, -1))  # (B or 1, H, D)
        keys = x.transpose(1, 2)  # (B, D, N)
        scores = F.linear(x, queries[0]).transpose(1, 2) if self.shared_query else queries @ keys  # (B, H, N)
        weights = self.attention_dropout(scores.softmax(dim=-1))
        values = (weights @ x).transpose(0, 1) @ value.unflatten(0, (self.heads, -1)).transpose(1, 2)  # (H, B, E)
        if value_bias is not None:  # after dropout the weights do not sum to one
            values = values + weights.sum(dim=-1).T[:, :, None] * value_bias.reshape(self.heads, 1, -1)
        y: Tensor = self.out(values.transpose(0, 1).flatten(1)[:, None])  # (B, 1, D)
        return y

    def _projections(self) -> list[tuple[Tensor, Tensor | None]]:
        """Weight (H*E, D) and bias (H*E,) of queries, keys and values."""
        biases = [None] * 3 if self.qkv.bias is None else self.qkv.bias.chunk(3)
        return list(zip(self.qkv.weight.chunk(3), biases, strict=True))


def absorbed_query(query: Tensor, key: Tensor, heads: int) -> Tensor:
    """s Wk' `query` of each head: `query` (H*E, X) and `key` (H*E, D) -> (H*D, X).

    `query` is the queries' weight, or a bias or queries as columns.
    """
    queries, keys = query.unflatten(0, (heads, -1)), key.unflatten(0, (heads, -1))  # (H, E, X), (H, E, D)
    absorbed: Tensor = queries.shape[1] ** -0.5 * keys.transpose(1, 2) @ queries
    return absorbed.flatten(0, 1)


def absorbed_output(out: nn.Module, value: Tensor, bias: Tensor | None, heads: int) -> tuple[Tensor, Tensor]:
    """Weight Wo_h Wv_h (D, H*D) and bias Wo bv + bo (D,); value (H*E, D), its bias (H*E,)."""
    output: Tensor
    constant: Tensor
    if isinstance(out, nn.Linear):
        output, constant = out.weight, out.bias  # (D, H*E), (D,)
    else:  # a single head as wide as the tokens
        output, constant = torch.eye(len(value)).to(value), torch.zeros(len(value)).to(value)
    if bias is not None:
        constant = constant + output @ bias
    per_head = output.unflatten(1, (heads, -1)).transpose(0, 1)  # (H, D, E)
    return (per_head @ value.unflatten(0, (heads, -1))).transpose(0, 1).flatten(1), constant


class FeedForward(nn.Module):
    """A norm and two linear layers, without the residual: (B, N, D) -> (B, N, D).

    `hidden_norm`: Yao et al., "Leveraging Batch Normalization for Vision Transformers", 2021.
    """

    def __init__(self, config: ModelConfig, norm: NormFactory, hidden_norm: NormFactory) -> None:
        super().__init__()
        self.norm = norm(config.dim)
        self.linear1 = nn.Linear(config.dim, config.mlp_dim)
        self.hidden_norm = hidden_norm(config.mlp_dim)
        self.dropout1 = nn.Dropout(config.dropout)
        self.linear2 = nn.Linear(config.mlp_dim, config.dim)
        self.dropout2 = nn.Dropout(config.dropout)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.hidden_norm(self.linear1(self.norm(x)))  # (B, N, hidden)
        y: Tensor = self.dropout2(self.linear2(self.dropout1(F.gelu(hidden))))  # (B, N, D)
        return y


class Block(nn.Module):
    """Attention and FFN with residuals: (B, N, D) -> (B, N, D), or (B, 1, D) if only token 0 has a query."""

    def __init__(self, attention: Attention, ffn: FeedForward) -> None:
        super().__init__()
        self.attention = attention
        self.ffn = ffn

    def forward(self, x: Tensor) -> Tensor:
        x = self.attention.queried(x) + self.attention(x)
        y: Tensor = x + self.ffn(x)
        return y
