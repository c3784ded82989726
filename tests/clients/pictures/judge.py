"""Accuracy of the shipped MNIST network on pictures."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from PIL import Image

from clients.preprocess import InvalidImage, to_model_input
from models.catalog import shipped
from models.checkpoints.checkpoint import load
from models.networks.config import INPUT_SCALE
from pictures.parts import Array


def seen(pictures: Sequence[Image.Image]) -> Array:
    """Preprocessed, uint8 (n, 1, 28, 28); background if there is no digit."""
    images = np.zeros((len(pictures), 1, 28, 28), dtype=np.uint8)
    for image, picture in zip(images, pictures, strict=True):
        try:
            image[:] = to_model_input(picture)
        except InvalidImage:
            continue
    return images


@cache
def _network() -> Any:
    return load(shipped("vitbn")).model.eval()


def right(images: Array, labels: Array) -> Array:
    """Right answers to uint8 (n, 1, 28, 28), bool (n,); an image without ink is never right."""
    with torch.inference_mode():
        logits = _network()(torch.tensor(images) * INPUT_SCALE)
    answers: Array = (logits.argmax(1).numpy() == labels) & images.any(axis=(1, 2, 3))
    return answers
