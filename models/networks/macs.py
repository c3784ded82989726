from __future__ import annotations

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from models.networks.registry import Network


def macs_per_image(model: nn.Module) -> int:
    """Multiply-accumulates of all matrix products and convolutions, by PyTorch's count. Raises TypeError."""
    if not isinstance(model, Network):
        raise TypeError(f"{type(model).__name__}: expected a network of this project")
    first = next(model.parameters())
    image = torch.zeros(1, *model.config.input_shape, dtype=first.dtype, device=first.device)
    with FlopCounterMode(display=False) as counter, torch.inference_mode():
        model(image)
    return int(counter.get_total_flops()) // 2
