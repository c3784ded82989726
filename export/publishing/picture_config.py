"""What clients read of a network of pictures of another origin, in place of a `ModelConfig`.

In: keyword arguments or JSON. Out: a checked `PictureConfig`. clients/images/framing.py acts on its framing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from common.framing import Framing
from models.networks.config import ConfigError, check_labels

OTHER = "other"  # the model's family


@dataclass(frozen=True)
class PictureConfig:
    """`image_size`: height, width in pixels. `channels`: 1, grey, or 3, RGB."""

    image_size: tuple[int, int]
    channels: int
    labels: tuple[str, ...]
    framing: Framing

    def __post_init__(self) -> None:
        check_labels(self.labels, len(self.labels))

    @property
    def input_shape(self) -> tuple[int, int, int]:
        """Channels, height, width."""
        return (self.channels, *self.image_size)

    @property
    def num_classes(self) -> int:
        return len(self.labels)

    @property
    def is_transformer(self) -> bool:
        """So that a server runs it in inner batches."""
        return True

    def to_json(self) -> str:
        return json.dumps({"model": OTHER, "preprocessing": "photo", **asdict(self)})


def picture_config(held: Mapping[str, Any]) -> PictureConfig:
    """Of the JSON object. Raises ConfigError."""
    try:
        labels, framing = tuple(held["labels"]), Framing.of(held["framing"])
        return PictureConfig(tuple(held["image_size"]), held["channels"], labels, framing)
    except ConfigError:
        raise
    except (LookupError, TypeError, ValueError) as error:
        raise ConfigError(f"model config: expected that of a network of pictures, found {error!r}") from error
