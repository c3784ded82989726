"""Multiply-accumulates by formula, without torch.

In: a configuration or the sizes of an attention. Out: the number that PyTorch's counter gives.
"""

from __future__ import annotations

from models.networks.config import ModelConfig


def attention_macs(tokens: int, dim: int, heads: int, dim_head: int) -> int:
    """Multiply-accumulates of one attention layer for one image, with its projections."""
    inner = heads * dim_head
    output = 0 if heads == 1 and dim_head == dim else inner * dim
    return tokens * (3 * dim * inner + output) + 2 * tokens**2 * inner


def absorbed_attention_macs(tokens: int, dim: int, heads: int) -> int:
    """Multiply-accumulates of the same layer as `AbsorbedAttention` computes it."""
    return 2 * tokens * heads * dim**2 + 2 * tokens**2 * heads * dim


def network_macs(config: ModelConfig) -> int:
    """Multiply-accumulates of one image, before any rewrite. Raises ValueError for DNN and vit-dtn: no formula here."""
    if config.model == "cnn":
        return _cnn_macs(config)
    if not config.is_transformer or config.model == "vit-dtn":
        raise ValueError(f"expected a CNN or a transformer without products in its norms, found {config.model}")
    macs = config.num_patches * config.patch_dim * config.dim + config.dim * config.num_classes
    for i in range(config.depth):
        block, tokens = config.block(i), config.tokens(i)
        macs += attention_macs(tokens, config.dim, block.heads, block.dim_head)
        macs += 2 * tokens * config.dim * config.mlp_dim
    return macs


def _cnn_macs(config: ModelConfig) -> int:
    """Three convolutions of 5x5, the last two each before a pooling by 2, and two linear layers: `cnn.py`."""
    (h1, w1), (h2, w2) = ((side - 4 for side in config.image_size), (side - 8 for side in config.image_size))
    h3, w3 = h2 // 2 - 4, w2 // 2 - 4
    half, full, hidden = config.dim // 2, config.dim, 4 * config.dim
    convolutions = 25 * half * (config.channels * h1 * w1 + half * h2 * w2 + full * h3 * w3)
    return convolutions + full * (h3 // 2) * (w3 // 2) * hidden + hidden * config.num_classes
