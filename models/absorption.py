"""Attention with the normalised tokens as keys and values: weights and cost.

In: head-major query-key-value and output projections. Out: the absorbed layer's tensors, differentiable.
H heads of size E, D features; s = 1/sqrt(E). Equations: export/rewrites/absorb.py.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


def attention_macs(tokens: int, dim: int, heads: int, dim_head: int) -> int:
    inner = heads * dim_head
    output = 0 if heads == 1 and dim_head == dim else inner * dim
    return tokens * (3 * dim * inner + output) + 2 * tokens**2 * inner


def absorbed_attention_macs(tokens: int, dim: int, heads: int) -> int:
    return 2 * tokens * heads * dim**2 + 2 * tokens**2 * heads * dim


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
