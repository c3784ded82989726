"""Parts of pictures: placed ink, paper, light, noise.

`Ink` is uint8 (224, 224), 255 = ink; `Cover` is float (h, w), each pixel's share of ink, 0 to 1.
"""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from scipy import ndimage

SHEET = 400  # pixels a side

Rng = np.random.Generator
Array = NDArray[Any]
Ink = NDArray[np.uint8]
Cover = NDArray[np.float64]


def tight(ink: Array) -> Array:
    rows, columns = np.flatnonzero((ink > 25).any(axis=1)), np.flatnonzero((ink > 25).any(axis=0))
    return ink[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]


def place(
    ink: Array, rng: Rng, share: float, at: Array | tuple[float, float] | None = None, side: int = SHEET
) -> Cover:
    """The ink's longer side takes `share` of an empty square sheet.

    at: position in the remaining room, 0 to 1 from left and top; by default random, near the middle.
    """
    picture = Image.fromarray(tight(ink))
    scale = side * share / max(picture.size)
    picture = picture.resize([max(1, round(extent * scale)) for extent in picture.size], Image.Resampling.BICUBIC)
    x, y = rng.uniform(0.35, 0.65, 2) if at is None else at
    sheet = Image.new("L", (side, side))
    sheet.paste(picture, (round(x * (side - picture.width)), round(y * (side - picture.height))))
    return np.asarray(sheet, dtype=float) / 255


def middle(ink: Array, rng: Rng) -> Cover:
    return place(ink, rng, rng.uniform(0.4, 0.6))


def paint(cover: Cover, paper: Array | float, ink: Array | float, light: Array | float = 1.0) -> Array:
    """`light`: each pixel's share of the light."""
    return (paper + cover * (ink - paper)) * light


def developed(levels: Array) -> Image.Image:
    """From grey levels (h, w) or colours (h, w, 3)."""
    return Image.fromarray(np.clip(np.rint(levels), 0, 255).astype(np.uint8))


def dark(rng: Rng) -> float:
    return rng.uniform(10, 70)


def white(rng: Rng) -> float:
    return rng.uniform(225, 255)


def ramp(side: int, rng: Rng) -> Array:
    """-1 to 1 across the sheet, in a random direction."""
    angle = rng.uniform(0, 2 * np.pi)
    y, x = np.ogrid[-1 : 1 : side * 1j, -1 : 1 : side * 1j]
    across = np.cos(angle) * x + np.sin(angle) * y
    scaled: Array = across / np.abs(across).max()
    return scaled


def shade(side: int, rng: Rng) -> Array:
    """Light around a shadow with a soft edge."""
    edge, softness = rng.uniform(-0.4, 0.4), rng.uniform(0.03, 0.12)
    light: Array = 1 - rng.uniform(0.25, 0.5) / (1 + np.exp(-(ramp(side, rng) - edge) / softness))
    return light


def clouds(side: int, rng: Rng, grain: float) -> Array:
    """Noise (side, side) with standard deviation 1, smooth over `grain` pixels."""
    noise = ndimage.gaussian_filter(rng.normal(size=(side, side)), grain, mode="wrap")
    scaled: Array = noise / noise.std()
    return scaled


def compressed(picture: Image.Image, quality: int) -> Image.Image:
    stream = io.BytesIO()
    picture.save(stream, "JPEG", quality=quality)
    return Image.open(stream)


def lines(side: int, rng: Rng) -> Array:
    """bool (side, side)."""
    pitch, width, first = rng.integers(20, 45), rng.integers(1, 3), rng.integers(20)
    return np.broadcast_to((np.arange(side) + first)[:, None] % pitch < width, (side, side))


def skeleton(ink: Array) -> Array:
    """The middle lines of strokes, bool (h, w): thinning by Zhang and Suen (1984)."""
    shape = np.pad(ink, 1)
    while True:
        before = shape.sum()
        for step in (0, 1):
            # Clockwise from the upper neighbour.
            ring = [(-1, 0), (-1, 1), (0, 1), (1, 1), (1, 0), (1, -1), (0, -1), (-1, -1)]
            n = [np.roll(shape, (-dy, -dx), (0, 1)) for dy, dx in ring]
            count = sum(each.astype(int) for each in n)
            turns = sum((~a & b).astype(int) for a, b in zip(n, n[1:] + n[:1], strict=True))
            up, right, down, left = n[0], n[2], n[4], n[6]
            kept = (
                (up & right & down) | (right & down & left) if step == 0 else (up & right & left) | (up & down & left)
            )
            shape = shape & ~((count >= 2) & (count <= 6) & (turns == 1) & ~kept)
        if shape.sum() == before:
            inner: Array = shape[1:-1, 1:-1]
            return inner


def fine(ink: Array, rng: Rng) -> Cover:
    """Redraws the ink one or two pixels wide."""
    extent = round(SHEET * rng.uniform(0.4, 0.6))
    shape = Image.fromarray(tight(ink))
    scale = extent / max(shape.size)
    shape = shape.resize([max(1, round(side * scale)) for side in shape.size], Image.Resampling.BICUBIC)
    line = skeleton(ndimage.gaussian_filter(np.asarray(shape, dtype=float), 2) > 110)
    if rng.random() < 0.5:
        line = ndimage.binary_dilation(line, np.ones((2, 2)))
    cover = np.zeros((SHEET, SHEET))
    top, left = ((SHEET - side) // 2 for side in line.shape)
    cover[top : top + line.shape[0], left : left + line.shape[1]] = line
    blurred: Cover = ndimage.gaussian_filter(cover, 0.4)
    return blurred
