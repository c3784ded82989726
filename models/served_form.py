"""A transformer's served form, for training: same answers, less work.

In: images float (B, C, H, W). Out: logits float (B, num_classes), in eval mode the network's to 4e-7, with equal
gradients. In training the last norm and the last FFN's BatchNorms use statistics of CLS rows: only these reach the
head.
"""

from __future__ import annotations

from typing import cast

import torch.nn.functional as F
from torch import Tensor, nn

from models.absorption import absorbed_attention_macs, absorbed_output, absorbed_query, attention_macs
from models.layers import Attention, Block
from models.norms import TokenNorm
from models.vit import VisionTransformer


def served_form(model: nn.Module) -> nn.Module:
    """Returns `model` itself without tokens, or if its head or a norm reads other rows."""
    if not isinstance(model, VisionTransformer) or model.config.pool != "cls":
        return model
    mixes = any(module.mixes_tokens for module in model.modules() if isinstance(module, TokenNorm))
    return model if mixes else ServedForm(model)


class ServedForm(nn.Module):
    """Computes only the CLS row of the last block."""

    def __init__(self, model: VisionTransformer) -> None:
        super().__init__()
        self.model = model

    def forward(self, image: Tensor) -> Tensor:
        model, config = self.model, self.model.config
        x = model.embed(image)  # (B, N, D)
        *before, last = cast(list[Block], list(model.blocks))
        for block in before:
            x = x + attend(cast(Attention, block.attention), x)
            x = x + block.ffn(x)
        constant = len(before) == 0 or config.late_cls is not None
        alike = constant and (config.emb_dropout == 0 or not self.training)
        return model.classify(last_row(last, model.join(x), alike))


def attend(attention: Attention, x: Tensor) -> Tensor:
    """`attention` of (B, N, D), absorbed if cheaper and exact under dropout."""
    tokens, dim = x.shape[1:]
    cost = attention_macs(tokens, dim, attention.heads, attention.dim_head)
    drops = attention.training and attention.attention_dropout.p > 0 and attention.qkv.bias is not None
    if drops or absorbed_attention_macs(tokens, dim, attention.heads) >= cost:
        plain: Tensor = attention(x)
        return plain
    heads, qkv = attention.heads, attention.qkv
    query, key, value = qkv.weight.chunk(3)  # (H*E, D)
    query_bias, _, value_bias = [None] * 3 if qkv.bias is None else qkv.bias.chunk(3)
    if query_bias is not None:
        query_bias = absorbed_query(query_bias[:, None], key, heads)[:, 0]
    x = attention.norm(x)
    queries = F.linear(x, absorbed_query(query, key, heads), query_bias).reshape(-1, tokens * heads, dim)
    weights = attention.attention_dropout((queries @ x.transpose(1, 2)).softmax(dim=-1))  # (B, N*H, N)
    rows = (weights @ x).reshape(-1, tokens, heads * dim)  # (B, N, H*D)
    out = F.linear(rows, *absorbed_output(attention.out, value, value_bias, heads))  # (B, N, D)
    y: Tensor = attention.out_dropout(out)
    return y


def last_row(block: Block, x: Tensor, alike: bool) -> Tensor:
    """Row 0 after `block`; `alike`: all images have the same row 0."""
    row = x[:, :1] + attend_to_row(cast(Attention, block.attention), x, alike)  # (B, 1, D)
    y: Tensor = row + block.ffn(row)
    return y


def attend_to_row(attention: Attention, x: Tensor, alike: bool) -> Tensor:
    """Row 0 (B, 1, D) of `attention` for tokens (B, N, D); projects no keys or values."""
    heads, qkv = attention.heads, attention.qkv
    query, key, value = qkv.weight.chunk(3)  # (H*E, D)
    query_bias, _, value_bias = [None] * 3 if qkv.bias is None else qkv.bias.chunk(3)
    x = attention.norm(x)
    queries = F.linear(x[: 1 if alike else None, 0], query, query_bias)  # (B or 1, H*E)
    queries = absorbed_query(queries.T, key, heads).T.unflatten(1, (heads, -1))  # (B or 1, H, D)
    scores = F.linear(x, queries[0]).transpose(1, 2) if alike else queries @ x.transpose(1, 2)  # (B, H, N)
    weights = attention.attention_dropout(scores.softmax(dim=-1))
    values = (weights @ x).transpose(0, 1) @ value.unflatten(0, (heads, -1)).transpose(1, 2)  # (H, B, E)
    if value_bias is not None:  # after dropout the rows of weights do not sum to one
        values = values + weights.sum(dim=-1).T[:, :, None] * value_bias.reshape(heads, 1, -1)
    rows = attention.out(values.transpose(0, 1).flatten(1)[:, None])  # (B, 1, D)
    y: Tensor = attention.out_dropout(rows)
    return y
