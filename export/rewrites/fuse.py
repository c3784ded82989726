"""Attention in the form that GPU kernels fuse: softmax(q k') v in rank 4, with nothing between product and softmax."""

from __future__ import annotations

import copy

from torch import nn

from export.rewrites.absorb import AbsorbedAttention
from export.rewrites.biases import QueryBiasAttention
from export.rewrites.errors import DoesNotApply
from models.layers import Attention


def fuse_attention(model: nn.Module) -> nn.Module:
    """Folds s = 1/sqrt(E) into the queries: s (Wq x + bq)'k = (s Wq x + s bq)'k.

    Absorbed attention holds s already; it becomes one head of H*N queries over N shared keys and values.
    Raises DoesNotApply.
    """
    fused = copy.deepcopy(model)
    layers = [module for module in fused.modules() if isinstance(module, Attention | AbsorbedAttention)]
    if not layers:
        raise DoesNotApply(f"{type(model).__name__}: there is no attention")
    for layer in layers:
        layer.fused = True
        if isinstance(layer, Attention):
            _scale_queries(layer)
    return fused


def _scale_queries(layer: Attention) -> None:
    width = layer.heads * layer.dim_head
    tensors = [part.data[:width] for part in (layer.qkv.weight, layer.qkv.bias) if part is not None]
    tensors += [layer.query_bias] if isinstance(layer, QueryBiasAttention) else []
    for tensor in tensors:
        tensor *= layer.scale
    layer.scale = 1.0
