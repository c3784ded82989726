"""PyTorch's own count of a network's multiply-accumulates, beside the formulas of models/networks/costs.py."""

from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode


def macs_per_image(model: Any) -> int:
    """Multiply-accumulates of all matrix products and convolutions, by PyTorch's count."""
    first = next(model.parameters())
    image = torch.zeros(1, *model.config.input_shape, dtype=first.dtype, device=first.device)
    with FlopCounterMode(display=False) as counter, torch.inference_mode():
        model(image)
    return int(counter.get_total_flops()) // 2
