"""Compares a photo with the pictures that its model was trained on: its background, and the share that the thing fills.

In: a model's input uint8 (C, H, W) and the `Looks` of the training pictures. Out: the input, inverted if the
background is dark instead of light or light instead of dark; a note for the user; whether the photo suits the model.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from common.background_and_fill import DARK, LIGHT, border_levels, fill_shares
from common.preprocessing_settings import Background

_ENOUGH = 0.9  # of `Looks.fill`


@dataclass(frozen=True)
class Looks:
    """How the training pictures look.

    fill: the smallest share of a picture's width or height, 0 to 1, that a thing in them fills.
    """

    background: Background
    fill: float


class CheckedPhoto(NamedTuple):
    """`pixels`: uint8 (C, H, W); `note`: for the user; `suits`: whether the photo looks like the training pictures."""

    pixels: NDArray[np.uint8]
    note: str = ""
    suits: bool = True


def check_photo(pixels: NDArray[np.uint8], looks: Looks | None) -> CheckedPhoto:
    """uint8 (C, H, W) -> the same pixels, or the inverted pixels if their background differs from `looks`.

    A photo without a uniform background, and every photo without `looks`, suits unchecked.
    """
    background = background_of(pixels)
    if looks is None or background is None:
        return CheckedPhoto(pixels)
    note = ""
    if background != looks.background:
        pixels = np.invert(pixels)
        note = f"inverted: its background is {background}, that of the model's training pictures {looks.background}"
    if (share := float(fill_shares(pixels[np.newaxis])[0])) < _ENOUGH * looks.fill:
        usual = f"{100 * looks.fill:.0f} % or more" if looks.fill < 0.995 else "all of it"
        shares = f"{100 * share:.0f} % of the frame, in the training pictures {usual}"
        unlike = "unlike the model's training pictures, so the answer may mean nothing"
        note = f"{unlike}: the thing fills {shares}; crop it"
        return CheckedPhoto(pixels, note, suits=False)
    return CheckedPhoto(pixels, note)


def background_of(pixels: NDArray[np.uint8]) -> Background | None:
    """The background of uint8 (C, H, W) by its border; None if the border is neither dark nor light."""
    (level,) = border_levels(pixels[np.newaxis])
    return "dark" if level < DARK else "light" if level > LIGHT else None
