"""A PyTorch network whose attention is one fused kernel, `scaled_dot_product_attention`."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from models.networks.config import ModelConfig
from models.networks.layers import Attention
from models.networks.norms import NormFactory
from models.networks.registry import build


class FusedAttention(Attention):
    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, scale=self.scale)  # (B, H, N, E)


def fused_attention(config: ModelConfig, i: int, norm: NormFactory) -> Attention:
    return FusedAttention(config.block(i), norm)


def with_fused_attention(model: nn.Module, config: ModelConfig) -> nn.Module:
    """A copy in eval mode with fused attention; a network without attention stays as it is."""
    fused = build(config, fused_attention).eval()
    fused.load_state_dict(model.state_dict())
    return fused
