"""Reads the description of a classifier that the exporter has written.

In: the parameters of config.pbtxt, or the metadata of an ONNX file. Out: a `Description`: how the model reads pictures,
its labels and its calibration.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_args

from clients.images.prepare import Preparation
from clients.images.training_photo_match import Looks
from common.preprocessing_settings import Background, Framing, Preprocessing

DESCRIPTION_ERRORS = (LookupError, TypeError, ValueError, AttributeError)  # of `describe`, for another kind of model


@dataclass(frozen=True)
class Description(Preparation):
    family: str  # "vitbn", "vit", "vitbnffn" or "cnn"
    labels: tuple[str, ...]
    temperature: float  # divides the logits before softmax
    evidence_limit: float | None  # pictures with less evidence are rejected; None: not fitted

    def rejects(self, evidence: float, suits: bool) -> bool:
        """Whether a picture shows none of the labels. `suits`: it looks as the training pictures did."""
        return self.evidence_limit is not None and (not suits or evidence < self.evidence_limit)


def describe(parameters: Mapping[str, str]) -> Description:
    """Parameters by name -> the description. Raises DESCRIPTION_ERRORS unless the exporter has written them."""
    config = json.loads(parameters["model_config"])
    labels = tuple(str(label) for label in config["labels"])
    height, width = (int(side) for side in config["image_size"])
    image_shape = (int(config["channels"]), height, width)
    if not labels or min(image_shape) < 1:
        raise ValueError(f"{len(labels)} labels for images of {image_shape}")
    preprocessing = config.get("preprocessing", "ink")  # older models lack it
    if preprocessing not in get_args(Preprocessing):
        raise ValueError(f"the preprocessing {preprocessing!r}")
    temperature = float(parameters.get("temperature", 1.0))
    if not 0 < temperature < math.inf:
        raise ValueError(f"the temperature {temperature}")
    limit = float(parameters["evidence_limit"]) if "evidence_limit" in parameters else None  # older models lack it
    if limit is not None and not math.isfinite(limit):
        raise ValueError(f"the evidence limit {limit}")
    looks = _looks(config) if preprocessing == "photo" else None
    framing = Framing.of(config["framing"]) if config.get("framing") is not None else None
    return Description(image_shape, preprocessing, looks, framing, str(config["model"]), labels, temperature, limit)


def _looks(config: Mapping[str, Any]) -> Looks | None:
    """How the training photos look; None for older models and for photos with different backgrounds."""
    background, fill = config.get("background"), config.get("fill")
    if background is None:
        return None
    if background not in get_args(Background) or not 0 <= float(fill or 0) <= 1:
        raise ValueError(f"pictures on a background {background!r} that fill {fill!r}")
    return Looks(background, float(fill or 0))
