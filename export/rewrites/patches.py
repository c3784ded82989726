"""Another order of the pixels in a patch replaces a slow copy.

A convolution in place of copy and Linear was slower at depth 2.
"""

from __future__ import annotations

import copy

from einops import rearrange
from einops.layers.torch import Rearrange
from torch import nn

from export.rewrites.errors import DoesNotApply
from models.vit import VisionTransformer

ROWS_FIRST, CHANNELS_FIRST = "(p1 p2 c)", "(c p1 p2)"


def cut_by_channel(model: nn.Module) -> nn.Module:
    """Cuts the patches channel by channel, in rows of pixels; training cut pixel by pixel.

    Reorders the columns of the patch embedding alike. A LayerNorm between ignores the order. Raises DoesNotApply.
    """
    if not isinstance(model, VisionTransformer):
        raise DoesNotApply(f"{type(model).__name__}: there are no patches")
    norm, linear = model.patch_norm, model.patch_embedding
    if not isinstance(model.to_patches, Rearrange) or not isinstance(linear, nn.Linear):
        raise DoesNotApply(f"patch_embedding: expected Linear, found {_kind(linear)}")
    if not (isinstance(norm, nn.Identity) or (isinstance(norm, nn.LayerNorm) and not norm.elementwise_affine)):
        raise DoesNotApply(f"patch_norm: expected a LayerNorm without gamma and beta, or none, found {_kind(norm)}")
    if ROWS_FIRST not in model.to_patches.pattern:
        raise DoesNotApply(f"to_patches: expected {ROWS_FIRST}, found {model.to_patches.pattern}")
    rewritten = copy.deepcopy(model)
    height, width = model.config.patch_size
    sizes = {"p1": height, "p2": width, "c": model.config.channels}
    weight = rearrange(linear.weight.data, f"d {ROWS_FIRST} -> d {CHANNELS_FIRST}", **sizes)
    rewritten.patch_embedding.get_parameter("weight").data = weight
    rewritten.to_patches = Rearrange(model.to_patches.pattern.replace(ROWS_FIRST, CHANNELS_FIRST), **sizes)
    return rewritten


def _kind(module: nn.Module) -> str:
    return type(module).__name__
