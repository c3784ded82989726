from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from models.registry import Network


def macs_per_image(model: nn.Module) -> int:
    """Multiply-accumulates of all matrix products and convolutions, by PyTorch's count."""
    if not isinstance(model, Network):
        raise TypeError(f"{type(model).__name__}: expected a network of this project")
    first = next(model.parameters())
    image = torch.zeros(1, *model.config.input_shape, dtype=first.dtype, device=first.device)
    fused: list[Any] = [module for module in model.modules() if getattr(module, "fused", False)]
    try:
        for module in fused:  # the counter does not know the kernel on CPUs
            module.fused = False
        with FlopCounterMode(display=False) as counter, torch.inference_mode():
            model(image)
    finally:
        for module in fused:
            module.fused = True
    return int(counter.get_total_flops()) // 2
