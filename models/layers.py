"""The layers of the transformers, each written once; the normalisation is injected (models/norms.py).

Shapes: B images, N tokens, D features, H heads of size E.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.norms import NormFactory


class TokenEmbedding(nn.Module):
    """Puts the CLS token before the patches and adds the position of each: (B, N-1, D) -> (B, N, D)."""

    def __init__(self, tokens: int, dim: int, sinusoidal: bool, dropout: float) -> None:
        super().__init__()
        self.cls_token = nn.Parameter(torch.randn(1, 1, dim))
        self.pos_embedding: Tensor
        if sinusoidal:
            self.register_buffer("pos_embedding", sinusoidal_positions(tokens, dim), persistent=False)
        else:
            self.pos_embedding = nn.Parameter(torch.randn(1, tokens, dim))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        cls_token = self.cls_token.expand(x.shape[0], -1, -1)  # (B, 1, D)
        x = torch.cat((cls_token, x), dim=1) + self.pos_embedding  # (B, N, D)
        y: Tensor = self.dropout(x)
        return y


def sinusoidal_positions(tokens: int, dim: int) -> Tensor:
    """Rows [sin(n w_k), cos(n w_k)], w_k = 10000^(-k / (D/2)), k = 1..D/2: float32 (1, tokens, dim).

    Vaswani et al., "Attention Is All You Need", 2017, with the frequencies and the order (sines first) of the study.
    """
    half = dim // 2
    frequencies = 10000.0 ** (-torch.arange(1, half + 1, dtype=torch.float64) / half)  # (D/2,)
    angles = torch.arange(tokens, dtype=torch.float64)[:, None] * frequencies  # (N, D/2)
    return torch.cat((angles.sin(), angles.cos()), dim=1).float()[None]  # (1, N, D)


class Attention(nn.Module):
    """Normalised multi-head self-attention: (B, N, D) -> (B, N, D), without the residual.

    Dosovitskiy et al., "An Image is Worth 16x16 Words", 2021. `fused` computes the same with PyTorch's
    `scaled_dot_product_attention`; the study wrote the two products and the softmax out, which is the default.
    """

    def __init__(self, dim: int, heads: int, dim_head: int, dropout: float, norm: NormFactory, qkv_bias: bool) -> None:
        super().__init__()
        self.heads = heads
        self.dim_head = dim_head
        self.fused = False
        self.norm = norm(dim)
        self.qkv = nn.Linear(dim, 3 * heads * dim_head, bias=qkv_bias)  # rows q, k, v; each head-major
        self.attention_dropout = nn.Dropout(dropout)
        projects = not (heads == 1 and dim_head == dim)
        self.out: nn.Module = nn.Linear(heads * dim_head, dim) if projects else nn.Identity()
        self.out_dropout: nn.Module = nn.Dropout(dropout) if projects else nn.Identity()

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
            heads = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout)  # (B, H, N, E)
        else:
            scores = q @ k.transpose(-1, -2) * self.dim_head**-0.5  # (B, H, N, N)
            heads = self.attention_dropout(scores.softmax(dim=-1)) @ v  # (B, H, N, E)
        y: Tensor = self.out_dropout(self.out(heads.transpose(1, 2).flatten(2)))  # (B, N, D)
        return y


class FeedForward(nn.Module):
    """Two Linears with an exact GELU between: (B, N, D) -> (B, N, D), without the residual.

    `norm` stands before the first Linear (as in ViT), `hidden_norm` between it and the GELU (as in ViTBNFFN:
    Yao et al., "Leveraging Batch Normalization for Vision Transformers", 2021).
    """

    def __init__(self, dim: int, hidden_dim: int, dropout: float, norm: NormFactory, hidden_norm: NormFactory) -> None:
        super().__init__()
        self.norm = norm(dim)
        self.linear1 = nn.Linear(dim, hidden_dim)
        self.hidden_norm = hidden_norm(hidden_dim)
        self.dropout1 = nn.Dropout(dropout)
        self.linear2 = nn.Linear(hidden_dim, dim)
        self.dropout2 = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.hidden_norm(self.linear1(self.norm(x)))  # (B, N, hidden)
        y: Tensor = self.dropout2(self.linear2(self.dropout1(F.gelu(hidden))))  # (B, N, D)
        return y


class Block(nn.Module):
    """One transformer block: attention and feed-forward, each added to its input."""

    def __init__(self, attention: nn.Module, ffn: nn.Module) -> None:
        super().__init__()
        self.attention = attention
        self.ffn = ffn

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(x)
        y: Tensor = x + self.ffn(x)
        return y
