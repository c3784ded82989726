"""Fits the evidence below which a model rejects a picture as none of its classes.

In: logits of held-out pictures and of drawings of something else. Out: a threshold on `common.evidence`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps
from torch import Tensor

from common.evidence import evidence
from common.looks import looks
from models.data import Dataset
from models.data.dataset import DIGITS
from models.data.drawn import drawn
from models.data.not_digits import not_digits

MOST_LOST = 0.03  # of the held-out pictures
DRAWINGS = 2000


def fit_evidence_limit(held_out: Tensor, others: Tensor) -> dict[str, float]:
    """Logits (n, classes) of held-out pictures and of others -> entries of a checkpoint's metrics.

    The threshold maximises the rejected share of the others minus the rejected share of the held-out pictures, which is
    at most MOST_LOST.
    """
    held, other = (np.sort(evidence(logits.double().cpu().numpy())) for logits in (held_out, others))
    candidates = held[: 1 + int(MOST_LOST * len(held))]
    lost = np.searchsorted(held, candidates) / len(held)
    rejected = np.searchsorted(other, candidates) / len(other)
    best = int((rejected - lost).argmax())
    return {
        "evidence_limit": round(float(candidates[best]), 4),
        "rejected_held_out": float(lost[best]),
        "rejected_drawings": float(rejected[best]),
    }


def drawings(dataset: Dataset) -> NDArray[np.uint8]:
    """Drawings of none of the dataset's classes, as its models read pictures: uint8 (n, C, H, W).

    A dataset of digits gets letters, shapes and scribbles; any other gets digits, too. For photos the drawings fill the
    frame.
    """
    channels, *size = dataset.train_images.shape[1:]
    if dataset.labels == DIGITS:
        images = not_digits(DRAWINGS)
    else:
        images = np.concatenate((not_digits(DRAWINGS // 2), drawn(DRAWINGS // 2)[0]))
    if dataset.preprocessing == "photo":
        images = images[:, :, 3:25, 3:25]
    pictures = [np.asarray(ImageOps.pad(Image.fromarray(image), (size[1], size[0]))) for image in images[:, 0]]
    inputs: NDArray[np.uint8] = np.stack(pictures)[:, None].repeat(channels, axis=1)
    if dataset.preprocessing == "photo":
        background = looks(dataset.train_images).get("background")
        light = slice(None) if background == "light" else slice(0, 0) if background == "dark" else slice(0, None, 2)
        inputs[light] = np.invert(inputs[light])
    return inputs
