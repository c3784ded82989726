"""The convolutional baseline of the study, whose width is 64; `dim` is the channels of the last convolution.

In: images float (B, C, H, W), pixels in [0, 1]. Out: logits float (B, num_classes).
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from models.networks.config import ModelConfig


class CNN(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        height, width = (((side - 8) // 2 - 4) // 2 for side in config.image_size)
        half, full, hidden = config.dim // 2, config.dim, 4 * config.dim
        self.conv1 = nn.Conv2d(config.channels, half, kernel_size=5)
        self.norm1 = nn.BatchNorm2d(half)
        self.conv2 = nn.Conv2d(half, half, kernel_size=5)
        self.norm2 = nn.BatchNorm2d(half)
        self.conv3 = nn.Conv2d(half, full, kernel_size=5)
        self.norm3 = nn.BatchNorm2d(full)
        self.fc1 = nn.Linear(full * height * width, hidden)
        self.normfc = nn.BatchNorm1d(hidden)
        self.fc2 = nn.Linear(hidden, config.num_classes)

    def forward(self, image: Tensor) -> Tensor:
        x = F.relu(self.norm1(self.conv1(image)))  # (B, dim / 2, 24, 24) for 28x28
        x = F.max_pool2d(F.relu(self.norm2(self.conv2(x))), 2)  # (B, dim / 2, 10, 10)
        x = F.max_pool2d(F.relu(self.norm3(self.conv3(x))), 2)  # (B, dim, 3, 3)
        x = F.relu(self.normfc(self.fc1(x.flatten(1))))  # (B, 4 dim)
        logits: Tensor = self.fc2(x)  # (B, num_classes)
        return logits
