"""Judges whether a photo looks like the pictures that its model was trained on.

In: a model's input uint8 (C, H, W) and its `Looks`. Out: the input, inverted if its background is the other way round,
a note for the user, and whether it suits the model.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from common.framing import Background
from common.photo_statistics import DARK, LIGHT, border_levels, fill_shares

_OF_LEAST = 0.9  # of `Looks.fill` is enough


@dataclass(frozen=True)
class Looks:
    """How training pictures look. fill: the least share of the picture's width or height that a thing in them fills."""

    background: Background
    fill: float


class Suited(NamedTuple):
    """`pixels`: uint8 (C, H, W); `note`: for the user; `suits`: no difference from training pictures was seen."""

    pixels: NDArray[np.uint8]
    note: str = ""
    suits: bool = True


def suited(pixels: NDArray[np.uint8], looks: Looks | None) -> Suited:
    """uint8 (C, H, W) -> the same pixels, or their inverse if the background is not that of `looks`."""
    background = background_of(pixels)
    if looks is None or background is None:
        return Suited(pixels)
    note = ""
    if background != looks.background:
        pixels = np.invert(pixels)
        note = f"inverted: its background is {background}, that of the model's training pictures {looks.background}"
    if (share := float(fill_shares(pixels[np.newaxis])[0])) < _OF_LEAST * looks.fill:
        usual = f"{100 * looks.fill:.0f} % or more" if looks.fill < 0.995 else "all of it"
        shares = f"{100 * share:.0f} % of the frame, in the training pictures {usual}"
        unlike = "unlike the model's training pictures, so the answer may mean nothing"
        note = f"{unlike}: the thing fills {shares}; crop it"
        return Suited(pixels, note, suits=False)
    return Suited(pixels, note)


def background_of(pixels: NDArray[np.uint8]) -> Background | None:
    (level,) = border_levels(pixels[np.newaxis])
    return "dark" if level < DARK else "light" if level > LIGHT else None
