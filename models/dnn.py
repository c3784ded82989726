"""The fully connected networks on which BatchNorm was first shown to speed training up.

In: images float (B, C, H, W), pixels in [0, 1]. Out: logits float (B, num_classes).
Ioffe and Szegedy, "Batch Normalization", 2015, section 4.1. Weights start as PyTorch's Linear draws them.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from models.config import ModelConfig, ModelName, Preprocessing
from models.vit import Size, no_norm, pair

WIDTH = 100


class DNN(nn.Module):
    """Three hidden layers of 100 with sigmoids, and a Linear."""

    name: ModelName = "dnn"
    norm: Callable[[int], nn.Module] = staticmethod(no_norm)

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
        height, width = pair(image_size)
        self.config = ModelConfig(
            model=self.name,
            image_size=(height, width),
            channels=channels,
            num_classes=num_classes,
            labels=tuple(map(str, range(num_classes))) if labels is None else labels,
            preprocessing=preprocessing,
        )
        self.linear1 = nn.Linear(channels * height * width, WIDTH)
        self.norm1 = type(self).norm(WIDTH)
        self.linear2 = nn.Linear(WIDTH, WIDTH)
        self.norm2 = type(self).norm(WIDTH)
        self.linear3 = nn.Linear(WIDTH, WIDTH)
        self.norm3 = type(self).norm(WIDTH)
        self.head = nn.Linear(WIDTH, num_classes)

    def forward(self, image: Tensor) -> Tensor:
        x = image.flatten(1)  # (B, C*H*W)
        x = self.norm1(self.linear1(x)).sigmoid()  # (B, 100)
        x = self.norm2(self.linear2(x)).sigmoid()
        x = self.norm3(self.linear3(x)).sigmoid()
        logits: Tensor = self.head(x)  # (B, num_classes)
        return logits


class DNNBN(DNN):
    """The same with BatchNorm before each sigmoid."""

    name = "dnnbn"
    norm = staticmethod(nn.BatchNorm1d)
