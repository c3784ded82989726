"""The query takes up the key's weights, the output projection the value's."""

from __future__ import annotations

import copy
from typing import cast

from torch import Tensor, nn

from export.rewrites.errors import DoesNotApply, RewriteError
from export.rewrites.fold import linear
from export.rewrites.prune import ClsAttention, Constant, projections
from models.absorption import absorbed_attention_macs, absorbed_output, absorbed_query, attention_macs
from models.layers import Attention, fused_attention
from models.vit import VisionTransformer


def absorb_attention(model: nn.Module) -> nn.Module:
    """Makes the normalised tokens the keys and values of all heads, in each block where that is cheaper.

    For head h with weights Wq, Wk, Wv (E x D) and its columns Wo_h (D x E) of the output projection, s = 1/sqrt(E):

        score_ij = s (Wq x_i + bq)'(Wk x_j + bk) = (s Wk'Wq x_i + s Wk'bq)' x_j + (terms free of j)
        out_i    = sum_h (Wo_h Wv_h)(A_h X)_i + (sum_h Wo_h bv_h + bo)

    The softmax over j ignores terms free of j. Its rows sum to one, so the value bias is a constant.
    Raises DoesNotApply if no block gets cheaper.
    """
    if not isinstance(model, VisionTransformer):
        raise DoesNotApply(f"{type(model).__name__}: there is no attention")
    rewritten, costs = copy.deepcopy(model), []
    for i, block in enumerate(rewritten.blocks.children()):
        tokens = model.config.tokens(i)
        before, after, absorbed = _absorbed(f"blocks.{i}.attention", block.get_submodule("attention"), tokens)
        if after < before:
            block.add_module("attention", absorbed)
        costs.append((before, after))
    if all(after >= before for before, after in costs):
        before, after = costs[0]
        config = model.config
        raise DoesNotApply(
            f"attention: absorbing costs {after:,} multiplications a block and image instead of {before:,} "
            f"(dim {config.dim}, {config.heads} heads of {config.dim_head}, {config.num_patches + 1} tokens)"
        )
    return rewritten


def _absorbed(name: str, attention: nn.Module, tokens: int) -> tuple[int, int, nn.Module]:
    if isinstance(attention, Attention):
        dim, heads = attention.qkv.in_features, attention.heads
        before = attention_macs(tokens, dim, heads, attention.dim_head)
        return before, absorbed_attention_macs(tokens, dim, heads), AbsorbedAttention(attention, tokens)
    if isinstance(attention, ClsAttention):
        return *cls_attention_macs(attention, tokens), AbsorbedClsAttention(attention)
    raise RewriteError(f"{name}: expected Attention or ClsAttention, found {type(attention).__name__}")


def cls_attention_macs(attention: ClsAttention, tokens: int) -> tuple[int, int]:
    """Multiplications per image for row 0, before and after; a constant query is free."""
    dim, heads = attention.key.in_features, attention.heads
    inner = heads * attention.dim_head
    query = 0 if isinstance(attention.query, Constant) else 1
    output = 0 if isinstance(attention.out, nn.Identity) else inner * dim
    before = query * dim * inner + 2 * tokens * (dim + 1) * inner + output
    return before, (query + 1) * heads * dim**2 + 2 * tokens * heads * dim


class AbsorbedAttention(nn.Module):
    """(B, N, D) -> (B, N, D), without the residual."""

    def __init__(self, attention: Attention, tokens: int) -> None:
        super().__init__()
        self.heads, self.tokens, self.fused = attention.heads, tokens, False
        self.norm = attention.norm
        query, key, value = projections(attention)
        self.query = _query(query, key.weight.data, self.heads)
        self.out = _output(attention.out, value, self.heads)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(x)
        query = self.query(x).reshape(-1, self.tokens * self.heads, x.shape[-1])  # (B, N*H, D), no copy
        means = _shared(query, x, self.fused)
        y: Tensor = self.out(means.reshape(-1, self.tokens, self.heads * x.shape[-1]))  # (B, N, D)
        return y


class AbsorbedClsAttention(nn.Module):
    """`AbsorbedAttention` of row 0: (B, N, D) -> (B, 1, D)."""

    def __init__(self, attention: ClsAttention) -> None:
        super().__init__()
        self.heads, self.fused = attention.heads, False
        self.norm = attention.norm
        self.query = _query(attention.query, attention.key.weight.data, self.heads)
        self.out = _output(attention.out, attention.value, self.heads)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(x)
        query = self.query(x[:, :1]).reshape(-1, self.heads, x.shape[-1])  # (B or 1, H, D)
        means = _shared(query.expand(x.shape[0], -1, -1) if self.fused else query, x, self.fused)
        y: Tensor = self.out(means.reshape(-1, 1, self.heads * x.shape[-1]))  # (B, 1, D)
        return y


def _shared(query: Tensor, x: Tensor, fused: bool) -> Tensor:
    """Means of the tokens x (B, N, D) under queries (B, M, D) -> (B, M, D), fused (B, 1, M, D)."""
    if fused:
        return fused_attention(query[:, None], x[:, None], x[:, None], scale=1.0)  # (B, 1, M, D)
    means: Tensor = (query @ x.transpose(1, 2)).softmax(dim=-1) @ x
    return means


def _query(query: nn.Module, key: Tensor, heads: int) -> nn.Module:
    """Linear D -> H*E becomes D -> H*D, a constant (1, 1, H*E) becomes (1, 1, H*D)."""
    if isinstance(query, Constant):
        return Constant(absorbed_query(query.value[0].T, key, heads).T[None])
    weight, bias = query.get_parameter("weight").data, cast(Tensor | None, query.bias)
    absorbed_bias = None if bias is None else absorbed_query(bias.data[:, None], key, heads)[:, 0]
    return linear(absorbed_query(weight, key, heads), absorbed_bias)


def _output(out: nn.Module, value: nn.Linear, heads: int) -> nn.Linear:
    """Linear H*E -> D becomes H*D -> D."""
    weight, bias = absorbed_output(out, value.weight, value.bias, heads)
    return linear(weight.data, bias.data)
