"""Random distortions of training images, a new one at every sight: float (B, C, H, W) in [0, 1] -> the same.

`study` is the published study's: rotation by up to 20 degrees, translation by up to a fifth of the side, and with
probability 0.2 a zoom-out to between a half and a third. `light` distorts no more than people do in writing.
`crop-flip` is for photos (He et al., "Deep Residual Learning", 2016, section 4.2): a window of the picture's size in
the picture with 4 black pixels around it, mirrored half of the time. All draw from PyTorch's generator, which the
training's seed sets.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

from torch import Tensor, nn

Augmentation = Literal["none", "light", "study", "crop-flip"]


def augmentation(name: Augmentation) -> Callable[[Tensor], Tensor]:
    """The distortion of that name; it runs on the images' device, a whole batch at once."""
    if name == "none":
        return nn.Identity()
    if name == "crop-flip":
        return _crop_flip
    from kornia.augmentation import RandomAffine

    if name == "light":
        turn, slant = math.degrees(0.2), math.degrees(0.15)
        light: nn.Module = RandomAffine(turn, translate=(0.075, 0.075), scale=(0.88, 1.12), shear=slant, p=1.0)
        return light
    move = RandomAffine(degrees=20.0, translate=(0.2, 0.2), p=1.0)
    # At a half of its size the picture stays inside the frame when moved by a quarter of the side.
    zoom_out = RandomAffine(degrees=0.0, translate=(0.25, 0.25), scale=(1 / 3, 1 / 2), p=0.2)
    return nn.Sequential(move, zoom_out)


def _crop_flip(images: Tensor) -> Tensor:
    from kornia.augmentation import RandomCrop, RandomHorizontalFlip

    height, width = images.shape[2:]
    cropped: Tensor = RandomHorizontalFlip()(RandomCrop((height, width), padding=4)(images))  # (B, C, H, W)
    return cropped
