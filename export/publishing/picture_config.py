"""What clients need to know of a picture network of another origin, in place of a `ModelConfig`.

In: keyword arguments or JSON. Out: a checked `PictureConfig`, by whose framing
clients/images/resize_and_crop.py crops pictures.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from common.preprocessing_settings import Framing
from models.networks.config import ConfigError, check_labels

OTHER = "other"  # the value of "model" in the JSON, where networks of this project have their family


@dataclass(frozen=True)
class PictureConfig:
    """`image_size`: height, width in pixels. `channels`: 1 (grey) or 3 (RGB). Raises ConfigError for wrong labels."""

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
        """True, so that a server splits its batches into inner batches."""
        return True

    def to_json(self) -> str:
        return json.dumps({"model": OTHER, "preprocessing": "photo", **asdict(self)})


def picture_config(fields: Mapping[str, Any]) -> PictureConfig:
    """Reads the JSON object that `PictureConfig.to_json` writes. Raises ConfigError for another."""
    try:
        labels, framing = tuple(fields["labels"]), Framing.of(fields["framing"])
        return PictureConfig(tuple(fields["image_size"]), fields["channels"], labels, framing)
    except ConfigError:
        raise
    except (LookupError, TypeError, ValueError) as error:
        raise ConfigError(f"model config: expected that of a network of pictures, found {error!r}") from error
