"""The Vision Transformer; its variants differ only in their norms.

In: images float (B, C, H, W), pixels in [0, 1]. Out: logits float (B, num_classes). Dosovitskiy et al., "An Image is
Worth 16x16 Words", 2021, with a norm on both sides of the patch embedding (Kumar et al., "Dual PatchNorm", 2023). Under
class attention the CLS token joins in the last block (Touvron et al., "Going deeper with Image Transformers", 2021).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Literal, NamedTuple

from einops.layers.torch import Rearrange
from torch import Tensor, nn

from models.networks import foldable_norms, per_token_norms
from models.networks.config import ModelConfig, ModelName
from models.networks.costs import absorbed_attention_macs, attention_macs
from models.networks.foldable_norms import Norm, NormFactory, TokenBatchNorm, by_feature
from models.networks.layers import AbsorbedAttention, Attention, Block, FeedForward, TokenEmbedding


def no_norm(config: ModelConfig, dim: int) -> nn.Module:
    return nn.Identity()


def layer_norm(config: ModelConfig, dim: int) -> nn.Module:
    return nn.LayerNorm(dim)


class Norms(NamedTuple):
    """`tokens`: around the embedding, before attention and before the head; `ffn`: before the FFN; `hidden`: in it."""

    tokens: Norm
    ffn: Norm
    hidden: Norm = no_norm


def in_place_of_layer_norm(norm: Norm) -> Norms:
    return Norms(tokens=norm, ffn=norm)


batch_norm = by_feature(TokenBatchNorm)

NORMS: dict[ModelName, Norms] = {
    "vit": in_place_of_layer_norm(layer_norm),
    "vitbnffn": Norms(tokens=layer_norm, ffn=no_norm, hidden=batch_norm),
    "vitbn": Norms(tokens=batch_norm, ffn=no_norm, hidden=batch_norm),
    **{name: in_place_of_layer_norm(norm) for name, norm in (foldable_norms.NORMS | per_token_norms.NORMS).items()},
}


LastBlock = Literal["all", "row"]
AttentionOf = Callable[[ModelConfig, int, NormFactory], Attention]
"""Configuration, a block's number and its norm -> the block's attention. All kinds have the same weights."""


def plain_attention(config: ModelConfig, i: int, norm: NormFactory) -> Attention:
    return Attention(config.block(i), norm)


def cheaper_attention(config: ModelConfig, i: int, norm: NormFactory) -> Attention:
    """Absorbed attention if that is less work, else plain attention: the same answers and gradients."""
    block, tokens = config.block(i), config.tokens(i)
    plain = attention_macs(tokens, config.dim, block.heads, block.dim_head)
    cheaper = absorbed_attention_macs(tokens, config.dim, block.heads) < plain
    return AbsorbedAttention(block, norm) if cheaper else plain_attention(config, i, norm)


def row_attention(config: ModelConfig, i: int, norm: NormFactory) -> Attention:
    """If the head reads only the CLS row, the last block computes no other; earlier blocks are `cheaper_attention`.

    In eval mode answers differ from the plain network's by up to 4e-7; gradients are equal. In training the last FFN
    and the last norm have statistics of CLS rows. If the head reads all rows, every block is plain.
    """
    if not config.reads_row:
        return plain_attention(config, i, norm)
    if i < config.depth - 1:
        return cheaper_attention(config, i, norm)
    # The CLS token has seen no image before the only block, or before the block in which it joins.
    shared_query = (config.depth == 1 or config.class_attention is not None) and config.emb_dropout == 0
    return AbsorbedAttention(config.block(i), norm, row=True, shared_query=shared_query)


class VisionTransformer(nn.Module):
    def __init__(self, config: ModelConfig, attention: AttentionOf = plain_attention) -> None:
        super().__init__()
        self.config = config
        norm, ffn_norm, hidden_norm = (partial(norm, config) for norm in NORMS[config.model])
        height, width = config.patch_size
        standardised = partial(nn.LayerNorm, config.input_shape, elementwise_affine=False)
        self.input_norm: nn.Module = standardised() if config.standardise else nn.Identity()
        self.to_patches = Rearrange("b c (h p1) (w p2) -> b (h w) (c p1 p2)", p1=height, p2=width)
        self.patch_norm = norm(config.patch_dim)
        self.patch_embedding = nn.Linear(config.patch_dim, config.dim)
        self.embedding_norm = norm(config.dim)
        self.embedding = TokenEmbedding(config)
        self.blocks = nn.ModuleList(
            Block(attention(config, i, norm), FeedForward(config, ffn_norm, hidden_norm)) for i in range(config.depth)
        )
        self.norm = norm(config.dim)
        self.head = nn.Linear(config.dim, config.num_classes)

    def forward(self, image: Tensor) -> Tensor:
        x = self.to_patches(self.input_norm(image))  # (B, N-1, P)
        x = self.embedding_norm(self.patch_embedding(self.patch_norm(x)))  # (B, N-1, D)
        x = self.embedding(x)  # (B, N, D), or under class attention (B, N-1, D)
        *before, last = self.blocks
        for block in before:
            x = block(x)
        x = self.norm(last(self.embedding.join(x)))  # (B, N, D), or the first row alone (B, 1, D)
        x = x[:, 0] if self.config.pool == "cls" else x.mean(dim=1)  # (B, D)
        logits: Tensor = self.head(x)  # (B, num_classes)
        return logits
