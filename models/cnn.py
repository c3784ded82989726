"""The convolutional baseline of the study.

In: images float (B, C, H, W), pixels in [0, 1]. Out: logits float (B, num_classes).
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from models.config import ConfigError, ModelConfig, Preprocessing
from models.vit import Size, pair


class CNN(nn.Module):
    """Three 5x5 convolutions and two Linears, each but the last with BatchNorm and ReLU."""

    def __init__(
        self,
        *,
        image_size: Size = 28,
        channels: int = 1,
        num_classes: int = 10,
        labels: tuple[str, ...] | None = None,
        preprocessing: Preprocessing = "ink",
    ) -> None:
        super().__init__()
        height, width = (((side - 8) // 2 - 4) // 2 for side in pair(image_size))
        if height < 1 or width < 1:
            raise ConfigError(f"image_size: expected at least 20 pixels a side for the CNN, found {image_size}")
        self.config = ModelConfig(
            model="cnn",
            image_size=pair(image_size),
            channels=channels,
            num_classes=num_classes,
            labels=tuple(map(str, range(num_classes))) if labels is None else labels,
            preprocessing=preprocessing,
        )
        self.conv1 = nn.Conv2d(channels, 32, kernel_size=5)
        self.norm1 = nn.BatchNorm2d(32)
        self.conv2 = nn.Conv2d(32, 32, kernel_size=5)
        self.norm2 = nn.BatchNorm2d(32)
        self.conv3 = nn.Conv2d(32, 64, kernel_size=5)
        self.norm3 = nn.BatchNorm2d(64)
        self.fc1 = nn.Linear(64 * height * width, 256)
        self.normfc = nn.BatchNorm1d(256)
        self.fc2 = nn.Linear(256, num_classes)

    def forward(self, image: Tensor) -> Tensor:
        x = F.relu(self.norm1(self.conv1(image)))  # (B, 32, 24, 24) for 28x28
        x = F.max_pool2d(F.relu(self.norm2(self.conv2(x))), 2)  # (B, 32, 10, 10)
        x = F.max_pool2d(F.relu(self.norm3(self.conv3(x))), 2)  # (B, 64, 3, 3)
        x = F.relu(self.normfc(self.fc1(x.flatten(1))))  # (B, 256)
        logits: Tensor = self.fc2(x)  # (B, num_classes)
        return logits
