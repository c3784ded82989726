"""A network of three hidden layers with sigmoids; `dnnbn` has BatchNorm before each sigmoid.

In: images float (B, C, H, W), pixels in [0, 1]. Out: logits float (B, num_classes).
Ioffe and Szegedy, "Batch Normalization", 2015, section 4.1; initial weights are PyTorch's.
"""

from __future__ import annotations

import math

from torch import Tensor, nn

from models.networks.config import ModelConfig

WIDTH = 100


class DNN(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        norm = nn.BatchNorm1d if config.model == "dnnbn" else nn.Identity
        self.linear1 = nn.Linear(math.prod(config.input_shape), WIDTH)
        self.norm1 = norm(WIDTH)
        self.linear2 = nn.Linear(WIDTH, WIDTH)
        self.norm2 = norm(WIDTH)
        self.linear3 = nn.Linear(WIDTH, WIDTH)
        self.norm3 = norm(WIDTH)
        self.head = nn.Linear(WIDTH, config.num_classes)

    def forward(self, image: Tensor) -> Tensor:
        x = image.flatten(1)  # (B, C*H*W)
        x = self.norm1(self.linear1(x)).sigmoid()  # (B, 100)
        x = self.norm2(self.linear2(x)).sigmoid()
        x = self.norm3(self.linear3(x)).sigmoid()
        logits: Tensor = self.head(x)  # (B, num_classes)
        return logits
