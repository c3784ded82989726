"""Transformer layers; the norm is injected (models/norms.py).

Shapes: B images, N tokens, D features, H heads of size E.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.config import ModelConfig
from models.norms import NormFactory


class TokenEmbedding(nn.Module):
    """Puts the CLS token first and adds positions: (B, N-1, D) -> (B, N, D).

    With `late_cls` only `join` adds the token.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.late = config.late_cls is not None
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
        if not self.late:
            return x
        cls_token = (self.cls_token + self.pos_embedding[:, :1]).expand(x.shape[0], -1, -1)  # (B, 1, D)
        return torch.cat((self.dropout(cls_token), x), dim=1)

    def forward(self, x: Tensor) -> Tensor:
        if self.late:
            late: Tensor = self.dropout(x + self.pos_embedding[:, 1:])  # (B, N-1, D)
            return late
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

    def project(self, x: Tensor) -> list[Tensor]:
        """Normalised tokens (B, N, D) -> queries, keys and values, each (B, N, H*E)."""
        return list(self.qkv(x).chunk(3, dim=-1))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            part.unflatten(-1, (self.heads, self.dim_head)).transpose(1, 2)  # (B, H, N, E)
            for part in self.project(self.norm(x))
        )
        if self.fused:
            dropout = self.attention_dropout.p if self.training else 0.0
            heads = fused_attention(q, k, v, self.scale, dropout)  # (B, H, N, E)
        else:
            scores = q @ k.transpose(-1, -2) * self.scale  # (B, H, N, N)
            heads = self.attention_dropout(scores.softmax(dim=-1)) @ v  # (B, H, N, E)
        y: Tensor = self.out_dropout(self.out(heads.transpose(1, 2).flatten(2)))  # (B, N, D)
        return y


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
    def __init__(self, attention: nn.Module, ffn: nn.Module) -> None:
        super().__init__()
        self.attention = attention
        self.ffn = ffn

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(x)
        y: Tensor = x + self.ffn(x)
        return y
