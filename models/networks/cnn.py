"""The convolutional baseline of the study.

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
        self.conv1 = nn.Conv2d(config.channels, 32, kernel_size=5)
        self.norm1 = nn.BatchNorm2d(32)
        self.conv2 = nn.Conv2d(32, 32, kernel_size=5)
        self.norm2 = nn.BatchNorm2d(32)
        self.conv3 = nn.Conv2d(32, 64, kernel_size=5)
        self.norm3 = nn.BatchNorm2d(64)
        self.fc1 = nn.Linear(64 * height * width, 256)
        self.normfc = nn.BatchNorm1d(256)
        self.fc2 = nn.Linear(256, config.num_classes)

    def forward(self, image: Tensor) -> Tensor:
        x = F.relu(self.norm1(self.conv1(image)))  # (B, 32, 24, 24) for 28x28
        x = F.max_pool2d(F.relu(self.norm2(self.conv2(x))), 2)  # (B, 32, 10, 10)
        x = F.max_pool2d(F.relu(self.norm3(self.conv3(x))), 2)  # (B, 64, 3, 3)
        x = F.relu(self.normfc(self.fc1(x.flatten(1))))  # (B, 256)
        logits: Tensor = self.fc2(x)  # (B, num_classes)
        return logits
