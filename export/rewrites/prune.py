"""The last block computes only the row that the head reads."""

from __future__ import annotations

import copy

from torch import nn

from export.rewrites.errors import DoesNotApply, RewriteError
from models.layers import Attention
from models.norms import TokenNorm
from models.vit import VisionTransformer


def cls_only(model: nn.Module) -> nn.Module:
    """Only the keys and values of the last block need every row. Raises DoesNotApply."""
    if not isinstance(model, VisionTransformer):
        raise DoesNotApply(f"{type(model).__name__}: there is no CLS token")
    if model.config.pool != "cls":
        raise DoesNotApply(f"head: expected pool 'cls', found {model.config.pool!r}, which reads every row")
    last = f"blocks.{len(model.blocks) - 1}"
    for name in (f"{last}.ffn.norm", f"{last}.ffn.hidden_norm", "norm"):
        norm = model.get_submodule(name)
        if isinstance(norm, TokenNorm) and norm.mixes_tokens:
            found = type(norm).__name__
            raise DoesNotApply(f"{name}: expected a norm of each row alone, found {found}, which reads the others")
    rewritten = copy.deepcopy(model)
    attention = rewritten.get_submodule(f"{last}.attention")
    if type(attention) is not Attention:
        found = type(attention).__name__
        raise RewriteError(f"{last}.attention: expected Attention, found {found}; cls_only comes first")
    if attention.rows is not None:
        raise RewriteError(f"{last}: expected every row, found the CLS row alone already")
    attention.rows = 1
    return rewritten
