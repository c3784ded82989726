"""In a network of one block the patches serve as keys and values."""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from export.rewrites.absorb import AbsorbedAttention, Constant
from export.rewrites.errors import DoesNotApply
from export.rewrites.fold import FoldedEmbedding, linear
from models.layers import Block
from models.macs import macs_per_image
from models.vit import VisionTransformer


def absorb_embedding(model: nn.Module) -> nn.Module:
    """Removes the patch embedding if a constant query reads it: `absorb_attention`, a layer earlier.

    The tokens of the only block are x_0 = t_0 and x_j = W p_j + t_j, with t the table of positions. The head reads row
    0, so the only query q_h is constant:

        score_hj = q_h' x_j         = (W'q_h)' p_j + q_h' t_j
        row      = sum_h Wov_h (A_h x) + r = sum_h (Wov_h W) sum_j>0 A_hj p_j + sum_hj A_hj (Wov_h t_j + r / H)

    with r the CLS row plus the output bias; the H rows of A sum to one. Raises DoesNotApply.
    """
    if not isinstance(model, VisionTransformer):
        raise DoesNotApply(f"{type(model).__name__}: there are no patches")
    block = model.get_submodule("blocks.0")
    attention = block.attention
    if not (
        isinstance(attention, AbsorbedAttention)
        and isinstance(attention.query, Constant)
        and isinstance(attention.norm, nn.Identity)
        and isinstance(model.embedding, FoldedEmbedding)
        and isinstance(model.patch_embedding, nn.Linear)
    ):
        raise DoesNotApply("blocks.0: expected the only block, its norms folded, attention absorbed, for the CLS row")
    rewritten = copy.deepcopy(model)
    rewritten.blocks[0] = PatchBlock(block, model.patch_embedding.weight.data, model.embedding.rows.data[0])
    rewritten.patch_embedding, rewritten.embedding = nn.Identity(), NoEmbedding()
    before, after = macs_per_image(model), macs_per_image(rewritten)
    if after >= before:
        raise DoesNotApply(f"patch_embedding: absorbing costs {after:,} multiplications an image instead of {before:,}")
    return rewritten


class NoEmbedding(nn.Identity):
    """The block has the CLS token."""

    def join(self, x: Tensor) -> Tensor:
        return x


class PatchBlock(Block):
    """Row 0 over patches of P pixels: (B, N-1, P) -> (B, 1, D)."""

    def __init__(self, block: nn.Module, embedding: Tensor, table: Tensor) -> None:
        super().__init__(nn.Identity(), copy.deepcopy(block.get_submodule("ffn")))
        query = block.get_buffer("attention.query.value").unflatten(-1, (-1, table.shape[1]))[0, 0]  # (H, D)
        heads, last_is_cls = len(query), table.roll(-1, 0)  # (N, D)
        output = block.get_parameter("attention.out.weight").data.unflatten(1, (heads, -1))  # (D, H, D)
        constant = table[0]
        if block.get_submodule("attention.out").bias is not None:
            constant = constant + block.get_parameter("attention.out.bias").data
        outputs = torch.einsum("ohd,nd->ohn", output, last_is_cls) + (constant / heads)[:, None, None]
        self.query: Tensor
        self.scores: Tensor
        self.register_buffer("query", (query @ embedding)[None])  # (1, H, P)
        self.register_buffer("scores", (query @ last_is_cls.T)[None])  # (1, H, N)
        self.out = linear((output @ embedding).flatten(1), None)  # H*P -> D
        self.outputs = linear(outputs.flatten(1), None)  # H*N -> D

    def forward(self, patches: Tensor) -> Tensor:
        scores = F.pad(self.query @ patches.transpose(1, 2), (0, 1)) + self.scores  # (B, H, N), CLS token last
        weights = scores.softmax(dim=-1)
        pooled = weights[:, :, :-1] @ patches  # (B, H, P)
        row = self.out(pooled.flatten(1)) + self.outputs(weights.flatten(1))  # (B, D)
        return self.close(row)[:, None]
