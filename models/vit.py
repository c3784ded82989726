"""One Vision Transformer; ViT, ViTBNFFN, ViTBN and the others are its choices of normalisation.

In: images float (B, C, H, W), pixels in [0, 1]. Out: logits float (B, num_classes).
Dosovitskiy et al., "An Image is Worth 16x16 Words", 2021, with a norm on both sides of the patch embedding (Kumar et
al., "Dual PatchNorm", 2023), as in the study that replaces LayerNorm by BatchNorm.
"""

from __future__ import annotations

from collections.abc import Callable

from einops.layers.torch import Rearrange
from torch import Tensor, nn

from models.config import BatchNormFeatures, ModelConfig, ModelName, Pool, PositionEncoding, Preprocessing
from models.layers import Attention, Block, FeedForward, TokenEmbedding
from models.norms import DynamicFeatureNorm, NormFactory, ProgressiveRepBN, RepBN, RowNorm, TokenBatchNorm, UnifiedNorm
from models.token_norms import DynamicTokenNorm, TokenMinMax, TokenZScore

Size = int | tuple[int, int]


def pair(size: Size) -> tuple[int, int]:
    """One side or (height, width) -> (height, width)."""
    return (size, size) if isinstance(size, int) else size


def no_norm(features: int) -> nn.Module:
    """The norm that is not there."""
    return nn.Identity()


def by_feature(norm: type[RowNorm], config: ModelConfig) -> NormFactory:
    """A norm over every feature of a token, or over one feature, as `config.bn_features` says."""
    return lambda dim: norm(dim if config.bn_features == "dim" else 1)


class VisionTransformer(nn.Module):
    """The network itself; a subclass names the model and chooses three norms.

    `norms` gives the norms of (the tokens, the FFN's input, the FFN's hidden layer). Raises ConfigError for a geometry
    that is none.
    """

    name: ModelName
    norms: Callable[[ModelConfig], tuple[NormFactory, NormFactory, NormFactory]]

    def __init__(
        self,
        *,
        image_size: Size,
        patch_size: Size,
        num_classes: int,
        dim: int,
        depth: int,
        heads: int,
        mlp_dim: int,
        pool: Pool = "cls",
        channels: int = 3,
        dim_head: int = 64,
        dropout: float = 0.0,
        emb_dropout: float = 0.0,
        pos_emb: PositionEncoding = "learn",
        bn_features: BatchNormFeatures = "dim",
        qkv_bias: bool = False,
        labels: tuple[str, ...] | None = None,
        preprocessing: Preprocessing = "ink",
    ) -> None:
        super().__init__()
        config = self.config = ModelConfig(
            model=self.name,
            image_size=pair(image_size),
            patch_size=pair(patch_size),
            channels=channels,
            num_classes=num_classes,
            dim=dim,
            depth=depth,
            heads=heads,
            dim_head=dim_head,
            mlp_dim=mlp_dim,
            pool=pool,
            dropout=dropout,
            emb_dropout=emb_dropout,
            pos_emb=pos_emb,
            bn_features=bn_features,
            qkv_bias=qkv_bias,
            labels=tuple(map(str, range(num_classes))) if labels is None else labels,
            preprocessing=preprocessing,
        )
        norm, ffn_norm, hidden_norm = type(self).norms(config)
        height, width = config.patch_size
        self.to_patches: nn.Module = Rearrange("b c (h p1) (w p2) -> b (h w) (p1 p2 c)", p1=height, p2=width)
        self.patch_norm = norm(config.patch_dim)
        self.patch_embedding: nn.Module = nn.Linear(config.patch_dim, dim)
        self.embedding_norm = norm(dim)
        self.embedding: nn.Module = TokenEmbedding(config.num_patches + 1, dim, pos_emb == "pe1d", emb_dropout)
        self.blocks = nn.ModuleList(
            Block(
                Attention(dim, heads, dim_head, dropout, norm, qkv_bias),
                FeedForward(dim, mlp_dim, dropout, ffn_norm, hidden_norm),
            )
            for _ in range(depth)
        )
        self.norm = norm(dim)
        self.head = nn.Linear(dim, num_classes)

    def forward(self, image: Tensor) -> Tensor:
        x = self.to_patches(image)  # (B, N-1, P)
        x = self.embedding_norm(self.patch_embedding(self.patch_norm(x)))  # (B, N-1, D)
        x = self.embedding(x)  # (B, N, D)
        for block in self.blocks:
            x = block(x)
        x = self.norm(x)
        x = x[:, 0] if self.config.pool == "cls" else x.mean(dim=1)  # (B, D)
        logits: Tensor = self.head(x)  # (B, num_classes)
        return logits


class ViT(VisionTransformer):
    """LayerNorm everywhere: the usual network."""

    name = "vit"
    norms = staticmethod(lambda config: (nn.LayerNorm, nn.LayerNorm, no_norm))


class ViTBNFFN(VisionTransformer):
    """BatchNorm in the feed-forward block, between its first Linear and GELU; LayerNorm elsewhere."""

    name = "vitbnffn"
    norms = staticmethod(lambda config: (nn.LayerNorm, no_norm, by_feature(TokenBatchNorm, config)))


class ViTBN(VisionTransformer):
    """BatchNorm everywhere."""

    name = "vitbn"
    norms = staticmethod(
        lambda config: (by_feature(TokenBatchNorm, config), no_norm, by_feature(TokenBatchNorm, config))
    )


class ViTWith(VisionTransformer):
    """Another norm in each place where ViT has LayerNorm; a subclass chooses it."""

    token_norm: Callable[[ModelConfig], NormFactory]

    @classmethod
    def norms(cls, config: ModelConfig) -> tuple[NormFactory, NormFactory, NormFactory]:
        return cls.token_norm(config), cls.token_norm(config), no_norm


class ViTRepBN(ViTWith):
    """BatchNorm with a skip beside it."""

    name = "vit-repbn"
    token_norm = staticmethod(lambda config: by_feature(RepBN, config))


class ViTPRepBN(ViTWith):
    """From LayerNorm to RepBN in the course of the training."""

    name = "vit-prepbn"
    token_norm = staticmethod(
        lambda config: lambda dim: ProgressiveRepBN(dim, dim if config.bn_features == "dim" else 1)
    )


class ViTUN(ViTWith):
    """Unified Normalization: scaled by a smoothed mean square, not centred."""

    name = "vit-un"
    token_norm = staticmethod(lambda config: by_feature(UnifiedNorm, config))


class ViTDFN(ViTWith):
    """A learned mixture of z-score, min-max form and identity by feature."""

    name = "vit-dfn"
    token_norm = staticmethod(lambda config: by_feature(DynamicFeatureNorm, config))


class ViTDTN(ViTWith):
    """Dynamic Token Normalization; for comparison, it does not fold."""

    name = "vit-dtn"
    token_norm = staticmethod(lambda config: lambda dim: DynamicTokenNorm(dim, config.heads, config.grid))


class ViTMinMax(ViTWith):
    """The min-max form of each token; for comparison, it does not fold."""

    name = "vit-minmax"
    token_norm = staticmethod(lambda config: TokenMinMax)


class ViTZScore(ViTWith):
    """The z-score of each token; for comparison, it does not fold."""

    name = "vit-zscore"
    token_norm = staticmethod(lambda config: TokenZScore)
