"""How a picture becomes a model's image: plain data, which training and the exporter write and clients read.

In: what the exporter has read from a model's processor, or the JSON object in a model's configuration. Out: a checked
`Framing`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

Preprocessing = Literal["ink", "photo"]
"""The ink of a picture, laid out as MNIST's digits, or the picture as it is."""
Background = Literal["dark", "light"]
"""Of the training photos."""
Fit = Literal["short side", "squash", "cover", "contain", "none"]
Like = Literal["timm", "transformers"]
FILTERS = ("bicubic", "bilinear", "lanczos", "box", "hamming", "nearest")  # Pillow's


@dataclass(frozen=True)
class Framing:
    """How a picture is resized before the model's height and width are cut from its middle.

    fit: "short side" makes the shorter side `size[0]`, "squash" makes the picture `size`, "cover" and "contain" keep
    its proportions around or within `size`, "none" does not resize. size: height, width. resample: one of FILTERS.
    like: the library whose rounding is repeated. fill: grey or red, green and blue levels (0 to 255) beside a smaller
    picture; empty: no padding.
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
    def of(cls, held: Mapping[str, Any]) -> Framing:
        """Reads a JSON object. Raises ValueError, LookupError or TypeError if it holds something else."""
        height, width = (int(side) for side in held["size"])
        fill = tuple(int(level) for level in held["fill"])
        return cls(held["fit"], (height, width), str(held["resample"]), held["like"], fill)
