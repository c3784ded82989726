"""A model's input: its name, how a picture becomes it. Training and the exporter write this, clients read it.

In: the settings of a model's processor, or the JSON object in a model's configuration. Out: a checked `Framing`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

INPUT_NAME = "image"  # uint8 (batch, channels, height, width); in drawings 0 = background, 255 = ink
OUTPUT_NAME = "logits"  # float32 (batch, num_classes)

Preprocessing = Literal["ink", "photo"]
"""ink: the drawing alone, scaled and centred as MNIST's digits are. photo: the picture as it is."""
Background = Literal["dark", "light"]
"""The background of the training photos."""
Fit = Literal["short side", "squash", "cover", "contain", "none"]
Like = Literal["timm", "transformers"]
FILTERS = ("bicubic", "bilinear", "lanczos", "box", "hamming", "nearest")  # Pillow's


@dataclass(frozen=True)
class Framing:
    """How a picture is resized before the model's height and width are cropped from its middle.

    fit:      "short side" resizes to a shorter side of `size[0]`, "squash" to `size` without regard to proportions,
              "cover" and "contain" to the smallest picture around or the largest within `size`, "none" not at all.
    size:     (height, width) in pixels.
    resample: the filter, from FILTERS.
    like:     the library whose rounding is repeated.
    fill:     levels (0 to 255) of the padding of a picture smaller than the crop: for all channels, or red, green and
              blue; empty: no padding.
    Raises ValueError for other values.
    """

    fit: Fit
    size: tuple[int, int]
    resample: str
    like: Like
    fill: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        is_valid = self.fit in get_args(Fit) and self.resample in FILTERS and self.like in get_args(Like)
        if not is_valid or len(self.size) != 2 or min(self.size) < 1 or len(self.fill) not in (0, 1, 3):
            raise ValueError(f"the framing {vars(self)}")

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Framing:
        """Reads a JSON object with the class's fields. Raises ValueError, LookupError, TypeError for another object."""
        height, width = (int(side) for side in settings["size"])
        fill = tuple(int(level) for level in settings["fill"])
        return cls(settings["fit"], (height, width), str(settings["resample"]), settings["like"], fill)
