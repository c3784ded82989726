"""The configuration of a network, and the names of the served tensors.

In: keyword arguments or JSON. Out: a checked `ModelConfig`. Needs no torch.
"""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from dataclasses import dataclass
from typing import Any, Literal, get_args

from common.preprocessing_settings import INPUT_NAME as INPUT_NAME
from common.preprocessing_settings import OUTPUT_NAME as OUTPUT_NAME
from common.preprocessing_settings import Background, Preprocessing
from common.printable import is_printable

INPUT_SCALE = 1.0 / 255.0  # networks read pixels in [0, 1]

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
Augmentation = Literal[
    "none", "light", "elastic", "pens", "study", "crop-flip", "flip-erase", "turn", "turn-shade", "turn-colour", "roll"
]

MAX_DEPTH = 500  # a file may claim any number of blocks
CNN_MIN_SIDE = 20  # pixels, which the CNN's convolutions and poolings reduce to 1

MODEL_NAMES: tuple[ModelName, ...] = get_args(ModelName)
AUGMENTATIONS: tuple[Augmentation, ...] = get_args(Augmentation)
TRANSFORMER_NAMES: tuple[ModelName, ...] = tuple(name for name in MODEL_NAMES if name.startswith("vit"))
BY_TOKEN: tuple[ModelName, ...] = ("vit", "vit-dtn", "vit-minmax", "vit-zscore")  # norms without batch statistics


class ConfigError(ValueError):
    pass


@dataclass(frozen=True)
class ModelConfig:
    """The defaults are the published study's.

    CNN and DNN read only `channels`, `image_size`, `num_classes`, `labels`, `preprocessing`, `background` and `fill`,
    the CNN also `dim`.
    `background` and `fill` say how the training pictures look; common/background_and_fill.py measures them.
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
    class_attention: tuple[int, int] | None = None  # heads and their width in the last block, where the CLS token joins
    standardise: bool = False  # each picture by its own mean and spread, before the first layer
    preprocessing: Preprocessing = "ink"  # ink of a picture, or the picture as it is
    background: Background | None = None  # of the training photos; None: they differ
    fill: float | None = None  # least share of the frame's width or height that the thing in a training photo fills

    def __post_init__(self) -> None:
        for field, allowed in (
            ("model", MODEL_NAMES),
            ("pool", get_args(Pool)),
            ("pos_emb", get_args(PositionEncoding)),
            ("bn_features", get_args(BatchNormFeatures)),
            ("preprocessing", get_args(Preprocessing)),
        ):
            value = getattr(self, field)
            _require(isinstance(value, str) and value in allowed, field, f"one of {', '.join(allowed)}", value)
        for field in ("channels", "num_classes", "dim", "depth", "heads", "dim_head", "mlp_dim"):
            value = getattr(self, field)
            _require(type(value) is int and value >= 1, field, "an integer of at least 1", value)
        _require(self.depth <= MAX_DEPTH, "depth", f"at most {MAX_DEPTH}", self.depth)
        for field in ("image_size", "patch_size"):
            _require_sizes(field, getattr(self, field), "height and width")
        for field in ("dropout", "emb_dropout"):
            value = getattr(self, field)
            _require(type(value) in (int, float) and 0 <= value < 1, field, "a number in [0, 1)", value)
        for field in ("qkv_bias", "standardise"):
            _require(type(getattr(self, field)) is bool, field, "true or false", getattr(self, field))
        if self.is_transformer:
            divides = all(side % patch == 0 for side, patch in zip(self.image_size, self.patch_size, strict=True))
            _require(divides, "patch_size", f"a divisor of image_size {self.image_size}", self.patch_size)
            even = self.pos_emb == "learn" or self.dim % 2 == 0
            _require(even, "dim", "an even number for pos_emb pe1d", self.dim)
        if self.class_attention is not None:
            _require_sizes("class_attention", self.class_attention, "heads and their width")
            expected = "none without pool 'cls', or for vit-dtn, which needs its token"
            _require(self.reads_row, "class_attention", expected, self.class_attention)
        if self.model == "cnn":
            large = min(self.image_size) >= CNN_MIN_SIDE
            _require(large, "image_size", f"at least {CNN_MIN_SIDE} pixels a side for the CNN", self.image_size)
            _require(self.dim > 1, "dim", "at least 2 for the CNN", self.dim)
        self._check_looks()
        pictured = self.preprocessing == "ink" or self.channels in (1, 3)
        _require(pictured, "channels", "1, grey, or 3, RGB, for photos", self.channels)
        check_labels(self.labels, self.num_classes)

    def _check_looks(self) -> None:
        background, fill, allowed = self.background, self.fill, get_args(Background)
        is_name = background is None or (isinstance(background, str) and background in allowed)
        _require(is_name, "background", f"one of {', '.join(allowed)}", background)
        is_share = fill is None or (type(fill) in (int, float) and 0 <= fill <= 1)
        _require(is_share, "fill", "a number from 0 to 1", fill)

    @property
    def is_transformer(self) -> bool:
        return self.model in TRANSFORMER_NAMES

    @property
    def reads_row(self) -> bool:
        """Whether the head reads only the CLS row, and the norms before it need no other row."""
        return self.is_transformer and self.pool == "cls" and self.model != "vit-dtn"

    def block(self, index: int) -> ModelConfig:
        """The configuration of one block: under class attention the last block has other heads."""
        if self.class_attention is None or index < self.depth - 1:
            return self
        heads, dim_head = self.class_attention
        return dataclasses.replace(self, heads=heads, dim_head=dim_head)

    def tokens(self, index: int) -> int:
        """The number of tokens in a block: under class attention the CLS token joins in the last."""
        return self.num_patches + (self.class_attention is None or index == self.depth - 1)

    @property
    def num_patches(self) -> int:
        return self.grid[0] * self.grid[1]

    @property
    def grid(self) -> tuple[int, int]:
        return self.image_size[0] // self.patch_size[0], self.image_size[1] // self.patch_size[1]

    @property
    def patch_dim(self) -> int:
        return self.channels * self.patch_size[0] * self.patch_size[1]

    @property
    def input_shape(self) -> tuple[int, int, int]:
        """Channels, height, width."""
        return (self.channels, *self.image_size)

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> ModelConfig:
        try:
            return cls(**_arguments(text))
        except TypeError as error:
            raise ConfigError(f"model config: expected a JSON object of ModelConfig fields, found {error}") from error


def check_labels(labels: object, classes: int) -> None:
    """Raises ConfigError unless `labels` are as many different printable names as there are classes."""
    _require(isinstance(labels, tuple), "labels", "a tuple of names", labels)
    names: tuple[Any, ...] = labels if isinstance(labels, tuple) else ()
    _require(len(names) == classes, "labels", f"{classes} names", len(names))
    for label in names:
        # Triton counts lines of the labels file, and terminals obey control characters.
        plain = isinstance(label, str) and label.strip() != "" and is_printable(label)
        _require(plain, "labels", "printable names that are not empty", label)
    twice = next((label for label, count in Counter(names).items() if count > 1), None)
    _require(twice is None, "labels", "a different name for each class", twice)


def _arguments(text: str) -> dict[str, Any]:
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:  # too deep, or a number of too many digits
        raise ConfigError(f"model config: expected a JSON object of ModelConfig fields, found {error}") from error
    _require(isinstance(values, dict), "model config", "a JSON object of ModelConfig fields", values)
    return {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}


def _require_sizes(field: str, value: object, names: str) -> None:
    fits = isinstance(value, tuple) and len(value) == 2 and all(type(size) is int and size >= 1 for size in value)
    _require(fits, field, f"two integers of at least 1, {names}", value)


def _require(holds: bool, field: str, expected: str, found: object) -> None:
    if not holds:
        raise ConfigError(f"{field}: expected {expected}, found {_shown(found)}")


def _shown(value: object) -> str:
    """A value as an error shows it; with its type, if another library has it: numpy's numbers look like Python's."""
    parts = value if isinstance(value, tuple) else (value,)
    kind = next((type(part) for part in parts if type(part).__module__ != "builtins"), None)
    return repr(value) if kind is None else f"{' '.join(repr(value).split())} of {kind.__module__}.{kind.__name__}"
