"""Judges whether a photo looks like the pictures that its model was trained on.

In: a model's input uint8 (C, H, W) and its `Looks`. Out: the input, inverted if its background is the other way round,
a note for the user, and whether it suits the model. models/data/looks.py measures training pictures in the same way.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

_DARK, _LIGHT = 64, 191  # levels of a border; between them it is neither
_CONTRAST = 32  # levels between a thing and its border
_OF_LEAST = 0.9  # of `Looks.fill` is enough

Background = Literal["dark", "light"]


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
    if (share := _fill(pixels)) < _OF_LEAST * looks.fill:
        fills = f"fills {100 * share:.0f} % of the frame, in the training pictures {100 * looks.fill:.0f} % or more"
        note = f"unlike the model's training pictures, so the answer may mean nothing: the thing {fills}; crop it"
        return Suited(pixels, note, suits=False)
    return Suited(pixels, note)


def background_of(pixels: NDArray[np.uint8]) -> Background | None:
    level = np.median(_border(_grey(pixels)))
    return "dark" if level < _DARK else "light" if level > _LIGHT else None


def _grey(pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
    grey: NDArray[np.float32] = pixels.mean(axis=0, dtype=np.float32)  # (H, W)
    return grey


def _border(grey: NDArray[np.float32]) -> NDArray[np.float32]:
    return np.concatenate((grey[0], grey[-1], grey[1:-1, 0], grey[1:-1, -1]))


def _fill(pixels: NDArray[np.uint8]) -> float:
    grey = _grey(pixels)
    thing = np.abs(grey - np.median(_border(grey))) > _CONTRAST
    return max(_extent(thing.any(axis=1)), _extent(thing.any(axis=0)))


def _extent(filled: NDArray[np.bool_]) -> float:
    """The share from the first to the last filled row or column."""
    places = np.flatnonzero(filled)
    return float(places[-1] - places[0] + 1) / len(filled) if len(places) else 0.0
