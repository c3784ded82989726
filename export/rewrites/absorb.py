"""Second rewrite: the query takes up the key's weights, the output projection the value's.

In and out: see `export.rewrites`. No ViT exporter that we know does this; the algebra is in the docstrings.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from export.rewrites.errors import DoesNotApply, RewriteError
from export.rewrites.fold import linear
from models.layers import Attention
from models.vit import VisionTransformer


def absorb_attention(model: nn.Module) -> nn.Module:
    """Makes keys and values the normalised tokens themselves, shared by all heads.

    For head h with weights Wq, Wk, Wv (E x D) and its columns Wo_h (D x E) of the output projection, s = 1/sqrt(E):

        score_ij = s (Wq x_i + bq)'(Wk x_j + bk) = (s Wk'Wq x_i + s Wk'bq)' x_j + (terms free of j)
        out_i    = sum_h (Wo_h Wv_h)(A_h X)_i + (sum_h Wo_h bv_h + bo)

    The softmax over j does not see terms free of j, and its rows sum to one, so the value bias is a constant.
    Raises DoesNotApply for a network without attention, and where the absorbed form costs no fewer multiplications.
    """
    if not isinstance(model, VisionTransformer):
        raise DoesNotApply(f"{type(model).__name__}: there is no attention")
    config, tokens = model.config, model.config.num_patches + 1
    projected = attention_macs(tokens, config.dim, config.heads, config.dim_head)
    absorbed = absorbed_attention_macs(tokens, config.dim, config.heads)
    if absorbed >= projected:
        raise DoesNotApply(
            f"attention: absorbing costs {absorbed:,} multiplications a block and image instead of {projected:,} "
            f"(dim {config.dim}, {config.heads} heads of {config.dim_head}, {tokens} tokens)"
        )
    rewritten = copy.deepcopy(model)
    for i, block in enumerate(rewritten.blocks):
        if not isinstance(block.attention, Attention):
            found = type(block.attention).__name__
            raise RewriteError(f"blocks.{i}.attention: expected Attention, found {found}; absorb before cls_only")
        block.attention = AbsorbedAttention(block.attention, tokens)
    return rewritten


def attention_macs(tokens: int, dim: int, heads: int, dim_head: int) -> int:
    """Multiplications of one attention layer and image: projections, scores, weighted sum."""
    inner = heads * dim_head
    output = 0 if heads == 1 and dim_head == dim else inner * dim
    return tokens * (3 * dim * inner + output) + 2 * tokens**2 * inner


def absorbed_attention_macs(tokens: int, dim: int, heads: int) -> int:
    """The same after absorption: two projections with D in the place of E, and D-wide products."""
    return 2 * tokens * heads * dim**2 + 2 * tokens**2 * heads * dim


class AbsorbedAttention(nn.Module):
    """Attention whose keys and values are the normalised tokens: (B, N, D) -> (B, N, D), without the residual."""

    def __init__(self, attention: Attention, tokens: int) -> None:
        super().__init__()
        self.heads, self.tokens = attention.heads, tokens
        self.norm = attention.norm
        self.query = _absorbed_query(attention)
        self.out = _absorbed_output(attention)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(x)
        query = self.query(x).reshape(-1, self.tokens * self.heads, x.shape[-1])  # (B, N*H, D), no copy
        weights = (query @ x.transpose(1, 2)).softmax(dim=-1)  # (B, N*H, N)
        y: Tensor = self.out((weights @ x).reshape(-1, self.tokens, self.heads * x.shape[-1]))  # (B, N, D)
        return y


def _absorbed_query(attention: Attention) -> nn.Linear:
    """Linear D -> H*D with weight s Wk'Wq and bias s Wk'bq of each head."""
    query, key, _ = _heads(attention, attention.qkv.weight.data)  # (H, E, D)
    scale = attention.dim_head**-0.5
    weight = scale * key.transpose(1, 2) @ query  # (H, D, D)
    bias = None
    if attention.qkv.bias is not None:
        query_bias, _, _ = _heads(attention, attention.qkv.bias.data)  # (H, E, 1)
        bias = scale * key.transpose(1, 2) @ query_bias  # (H, D, 1)
    return linear(weight.flatten(0, 1), None if bias is None else bias.flatten())


def _absorbed_output(attention: Attention) -> nn.Linear:
    """Linear H*D -> D with weight Wo_h Wv_h of each head and bias sum_h Wo_h bv_h + bo."""
    _, _, value = _heads(attention, attention.qkv.weight.data)  # (H, E, D)
    dim = value.shape[-1]
    if isinstance(attention.out, nn.Linear):
        output, bias = attention.out.weight.data, attention.out.bias.data  # (D, H*E), (D,)
    else:  # no projection: one head as wide as the tokens
        output, bias = torch.eye(dim, dtype=value.dtype), torch.zeros(dim, dtype=value.dtype)
    if attention.qkv.bias is not None:
        bias = bias + output @ attention.qkv.bias.data.chunk(3)[2]
    per_head = output.unflatten(1, (attention.heads, attention.dim_head)).transpose(0, 1)  # (H, D, E)
    return linear((per_head @ value).transpose(0, 1).flatten(1), bias)


def _heads(attention: Attention, rows: Tensor) -> list[Tensor]:
    """Rows (3*H*E, D) or (3*H*E,) of the query-key-value projection -> three times (H, E, D) or (H, E, 1)."""
    return [part.reshape(attention.heads, attention.dim_head, -1) for part in rows.chunk(3)]
