"""What a model is: the frozen configuration that travels inside every artifact, and the names of the served tensors.

In: keyword arguments or the JSON text found in an artifact. Out: a checked `ModelConfig`. Needs no torch.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Any, Literal, get_args

INPUT_NAME = "image"  # uint8 (batch, channels, height, width); of drawings 0 = background, 255 = ink
OUTPUT_NAME = "logits"  # float32 (batch, num_classes)
INPUT_SCALE = 1.0 / 255.0  # what the networks are trained on: pixels in [0, 1]

ModelName = Literal[
    "vit",
    "vitbnffn",
    "vitbn",
    "vit-repbn",
    "vit-prepbn",
    "vit-un",
    "vit-dfn",
    "vit-dtn",
    "vit-minmax",
    "vit-zscore",
    "cnn",
    "dnn",
    "dnnbn",
]
Pool = Literal["cls", "mean"]
PositionEncoding = Literal["learn", "pe1d"]
BatchNormFeatures = Literal["dim", "one"]
Preprocessing = Literal["ink", "photo"]

MODEL_NAMES: tuple[ModelName, ...] = get_args(ModelName)
TRANSFORMER_NAMES: tuple[ModelName, ...] = tuple(name for name in MODEL_NAMES if name.startswith("vit"))


class ConfigError(ValueError):
    """A configuration that describes no model; the message names the field, what was expected and what was found."""


@dataclass(frozen=True)
class ModelConfig:
    """The architecture of one model and the classes it tells apart. The defaults are those of the published study.

    CNN and DNNs read `channels`, `image_size`, `num_classes`, `labels` and `preprocessing`; the other fields describe
    transformers.
    """

    model: ModelName = "vitbn"
    image_size: tuple[int, int] = (28, 28)  # height, width in pixels
    patch_size: tuple[int, int] = (7, 7)  # height, width in pixels
    channels: int = 1
    num_classes: int = 10
    dim: int = 64
    depth: int = 6
    heads: int = 8
    dim_head: int = 64
    mlp_dim: int = 128
    pool: Pool = "cls"
    dropout: float = 0.0
    emb_dropout: float = 0.0
    pos_emb: PositionEncoding = "learn"
    bn_features: BatchNormFeatures = "dim"
    qkv_bias: bool = False
    labels: tuple[str, ...] = tuple("0123456789")
    preprocessing: Preprocessing = "ink"  # what clients make of a picture: ink on nothing, or the picture as it is

    def __post_init__(self) -> None:
        for field, allowed in (
            ("model", MODEL_NAMES),
            ("pool", get_args(Pool)),
            ("pos_emb", get_args(PositionEncoding)),
            ("bn_features", get_args(BatchNormFeatures)),
            ("preprocessing", get_args(Preprocessing)),
        ):
            _require(getattr(self, field) in allowed, field, f"one of {', '.join(allowed)}", getattr(self, field))
        for field in ("channels", "num_classes", "dim", "depth", "heads", "dim_head", "mlp_dim"):
            value = getattr(self, field)
            _require(isinstance(value, int) and value >= 1, field, "an integer of at least 1", value)
        for field in ("image_size", "patch_size"):
            value = getattr(self, field)
            fits = len(value) == 2 and all(isinstance(side, int) and side >= 1 for side in value)
            _require(fits, field, "two integers of at least 1, height and width", value)
        for field in ("dropout", "emb_dropout"):
            _require(0 <= getattr(self, field) < 1, field, "a number in [0, 1)", getattr(self, field))
        if self.is_transformer:
            divides = all(side % patch == 0 for side, patch in zip(self.image_size, self.patch_size, strict=True))
            _require(divides, "patch_size", f"a divisor of image_size {self.image_size}", self.patch_size)
            even = self.pos_emb == "learn" or self.dim % 2 == 0
            _require(even, "dim", "an even number for pos_emb pe1d", self.dim)
        pictured = self.preprocessing == "ink" or self.channels in (1, 3)
        _require(pictured, "channels", "1, grey, or 3, RGB, for photos", self.channels)
        _require(len(self.labels) == self.num_classes, "labels", f"{self.num_classes} names", len(self.labels))

    @property
    def is_transformer(self) -> bool:
        """Whether this has patches and a depth; the CNN and the DNNs have not."""
        return self.model in TRANSFORMER_NAMES

    @property
    def num_patches(self) -> int:
        """Patches of one image."""
        return self.grid[0] * self.grid[1]

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of patches."""
        return self.image_size[0] // self.patch_size[0], self.image_size[1] // self.patch_size[1]

    @property
    def patch_dim(self) -> int:
        """Values of one patch."""
        return self.channels * self.patch_size[0] * self.patch_size[1]

    @property
    def input_shape(self) -> tuple[int, int, int]:
        """Channels, height, width of one image."""
        return (self.channels, *self.image_size)

    def to_json(self) -> str:
        """Every field as one JSON object."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> ModelConfig:
        """The inverse of `to_json`; raises ConfigError where the text is not such an object."""
        try:
            values = json.loads(text)
            arguments: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}
            return cls(**arguments)
        except (TypeError, AttributeError, json.JSONDecodeError) as error:
            raise ConfigError(f"model config: expected a JSON object of ModelConfig fields, found {error}") from error


def _require(holds: bool, field: str, expected: str, found: object) -> None:
    if not holds:
        raise ConfigError(f"{field}: expected {expected}, found {found!r}")
