"""Transformer layers; the norm is injected (models/norms.py).

Shapes: B images, N tokens, D features, H heads of size E.
"""

from __future__ import annotations

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.config import ModelConfig
from models.norms import NormFactory


class TokenEmbedding(nn.Module):
    """Puts the CLS token first and adds positions: (B, N-1, D) -> (B, N, D).

    Under class attention only `join` adds the token.
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
    """Norm and multi-head self-attention, without the residual: (B, N, D) -> (B, N, D), or with `rows` (B, rows, D).

    `absorbed` computes the same with the normalised tokens as keys and values of all heads. For head h with weights Wq,
    Wk, Wv (E x D) and its columns Wo_h (D x E) of the output projection, s = 1/sqrt(E):

        score_ij = s (Wq x_i + bq)'(Wk x_j + bk) = (s Wk'Wq x_i + s Wk'bq)' x_j + (terms free of j)
        out_i    = sum_h (Wo_h Wv_h)(A_h X)_i + (sum_h Wo_h bv_h + bo)

    The softmax over j ignores terms free of j. Its rows sum to one, so the value bias is a constant.
    """

    rows: int | None = None  # only the first rows are queries; None: all
    absorbed = False
    alike = False  # all images have the same row 0
    scale: float  # of the scores; 1 once a rewrite has folded it into the queries

    def __init__(self, config: ModelConfig, norm: NormFactory) -> None:
        super().__init__()
        self.heads = config.heads
        self.dim_head = config.dim_head
        self.fused = False
        self.scale = config.dim_head**-0.5
        width = config.heads * config.dim_head
        self.norm = norm(config.dim)
        self.qkv = nn.Linear(config.dim, 3 * width, bias=config.qkv_bias)  # rows q, k, v; each head-major
        self.attention_dropout = nn.Dropout(config.dropout)
        projects = not (config.heads == 1 and config.dim_head == config.dim)
        self.out: nn.Module = nn.Linear(width, config.dim) if projects else nn.Identity()
        self.out_dropout: nn.Module = nn.Dropout(config.dropout) if projects else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(x)
        y: Tensor = self.out_dropout(self._absorbed(x) if self.absorbed else self._projected(x))
        return y

    def projections(self) -> list[tuple[Tensor, Tensor | None]]:
        """Weight (H*E, D) and bias (H*E,) of queries, keys and values."""
        biases = [None] * 3 if self.qkv.bias is None else self.qkv.bias.chunk(3)
        return list(zip(self.qkv.weight.chunk(3), biases, strict=True))

    def project(self, x: Tensor) -> list[Tensor]:
        """Normalised tokens (B, N, D) -> queries (B, N or rows, H*E), keys and values (B, N, H*E)."""
        if self.rows is None:
            return list(self.qkv(x).chunk(3, dim=-1))
        query, key, value = self.projections()
        return [F.linear(first_rows(x, self.rows), *query), F.linear(x, *key), F.linear(x, *value)]

    def _projected(self, x: Tensor) -> Tensor:
        q, k, v = (
            part.unflatten(-1, (self.heads, self.dim_head)).transpose(1, 2)  # (B, H, N or rows, E)
            for part in self.project(x)
        )
        if self.fused:
            dropout = self.attention_dropout.p if self.training else 0.0
            heads = fused_attention(q, k, v, self.scale, dropout)  # (B, H, N, E)
        else:
            scores = q @ k.transpose(-1, -2) * self.scale  # (B, H, N, N)
            heads = self.attention_dropout(scores.softmax(dim=-1)) @ v  # (B, H, N, E)
        y: Tensor = self.out(heads.transpose(1, 2).flatten(2))  # (B, N, D)
        return y

    def _absorbed(self, x: Tensor) -> Tensor:
        if self.rows == 1:
            return self._absorbed_row(x)
        (query, query_bias), (key, _), (value, value_bias) = self.projections()
        if self.training and self.attention_dropout.p > 0 and value_bias is not None:
            return self._projected(x)  # after dropout the weights do not sum to one
        tokens, dim = x.shape[1:]
        if query_bias is not None:
            query_bias = absorbed_query(query_bias[:, None], key, self.heads)[:, 0]
        queries = F.linear(x, absorbed_query(query, key, self.heads), query_bias)  # (B, N, H*D)
        scores = queries.reshape(-1, tokens * self.heads, dim) @ x.transpose(1, 2)  # (B, N*H, N)
        means = (self.attention_dropout(scores.softmax(dim=-1)) @ x).reshape(-1, tokens, self.heads * dim)
        return F.linear(means, *absorbed_output(self.out, value, value_bias, self.heads))  # (B, N, D)

    def _absorbed_row(self, x: Tensor) -> Tensor:
        """Projects neither keys nor values of the tokens."""
        (query, query_bias), (key, _), (value, value_bias) = self.projections()
        queries = F.linear(x[: 1 if self.alike else None, 0], query, query_bias)  # (B or 1, H*E)
        queries = absorbed_query(queries.T, key, self.heads).T.unflatten(1, (self.heads, -1))  # (B or 1, H, D)
        scores = F.linear(x, queries[0]).transpose(1, 2) if self.alike else queries @ x.transpose(1, 2)  # (B, H, N)
        weights = self.attention_dropout(scores.softmax(dim=-1))
        values = (weights @ x).transpose(0, 1) @ value.unflatten(0, (self.heads, -1)).transpose(1, 2)  # (H, B, E)
        if value_bias is not None:  # after dropout the weights do not sum to one
            values = values + weights.sum(dim=-1).T[:, :, None] * value_bias.reshape(self.heads, 1, -1)
        y: Tensor = self.out(values.transpose(0, 1).flatten(1)[:, None])  # (B, 1, D)
        return y


def first_rows(x: Tensor, rows: int | None) -> Tensor:
    """Tokens (B, N, D) -> (B, rows, D), or all."""
    return x if rows is None else x[:, :rows]


def absorbed_query(query: Tensor, key: Tensor, heads: int) -> Tensor:
    """s Wk' `query`: `query` (H*E, X) is a weight, or a bias or query as column; key (H*E, D) -> (H*D, X)."""
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


def fused_attention(q: Tensor, k: Tensor, v: Tensor, scale: float, dropout: float = 0.0) -> Tensor:
    """softmax(scale q k') v: (B, H, M, E), (B, H, N, E), (B, H, N, E) -> (B, H, M, E).

    Exports get it written out: the exporter's own form hides the products behind reshapes.
    """
    if torch.compiler.is_exporting():
        scores = (q if scale == 1 else q * scale) @ k.transpose(-1, -2)  # (B, H, M, N)
        return scores.softmax(dim=-1) @ v  # (B, H, M, E)
    return F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, scale=scale)


class FeedForward(nn.Module):
    """Without the residual: (B, N, D) -> (B, N, D).

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
    """(B, N, D) -> (B, N, D), or as many rows as its attention has queries."""

    def __init__(self, attention: nn.Module, ffn: nn.Module) -> None:
        super().__init__()
        self.attention = attention
        self.ffn = ffn

    def forward(self, x: Tensor) -> Tensor:
        return self.close(first_rows(x, cast(Attention, self.attention).rows) + self.attention(x))

    def close(self, x: Tensor) -> Tensor:
        """Tokens after the attention -> after the block."""
        y: Tensor = x + self.ffn(x)
        return y
