"""The classifier takes up the second Linear of the last FFN."""

from __future__ import annotations

import copy

from torch import nn

from export.rewrites.errors import DoesNotApply
from export.rewrites.fold import linear
from models.vit import VisionTransformer


def merge_head(model: nn.Module) -> nn.Module:
    """Multiplies the last FFN's hidden features by num_classes columns instead of D.

    With r the CLS row after the attention, g = gelu(W1 r + b1), and the last norm folded into the head:

        logits = Wh (r + W2 g + b2) + bh = Wh r + (Wh W2) g + (Wh b2 + bh)

    Raises DoesNotApply.
    """
    if not isinstance(model, VisionTransformer):
        raise DoesNotApply(f"{type(model).__name__}: there is no FFN")
    last = f"blocks.{len(model.blocks) - 1}"
    if not _computes_row(model.get_submodule(last)):
        raise DoesNotApply(f"{last}: expected the CLS row alone, found every row")
    if not isinstance(model.norm, nn.Identity):
        raise DoesNotApply(f"norm: expected none before the head, found {type(model.norm).__name__}")
    classes, dim = model.head.weight.shape
    if classes >= dim:
        raise DoesNotApply(f"head: expected fewer classes than the {dim} features of a token, found {classes}")
    merged = copy.deepcopy(model)
    block, head = merged.get_submodule(last), merged.head
    second = block.get_submodule("ffn.linear2")
    weight, bias = head.weight.data, head.bias.data
    if second.bias is not None:
        bias = bias + weight @ second.get_parameter("bias").data
    block.set_submodule("ffn.linear2", linear(weight @ second.get_parameter("weight").data, None))
    block.set_submodule("residual", linear(weight, bias))
    merged.set_submodule("head", nn.Identity())
    return merged


def _computes_row(block: nn.Module) -> bool:
    attention = block.get_submodule("attention")
    return isinstance(attention, nn.Identity) or getattr(attention, "rows", None) is not None
