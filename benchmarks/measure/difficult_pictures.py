"""Pictures as people bring them: digits in a printed box, turned, under a hard edge of a shadow; letters and shapes.

In: digits uint8 (n, 28, 28), 255 = ink. Out: grey pictures of 280 x 280 pixels, the same at every call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

SIDE = 280  # pixels
TURN = 30.0  # degrees, clockwise
FONTS = ("DejaVuSans", "DejaVuSerif", "STIXGeneralItalic", "cmtt10")
LETTERS = "ACEFHKLMNPRTUVWXYadehkmnrtuw"  # none that is also a way to write a digit

Digit = NDArray[np.uint8]
Levels = NDArray[np.float64]
Rng = np.random.Generator


def plain(digit: Digit, rng: Rng) -> Image.Image:
    return _developed(_written(digit, rng), rng)


def boxed(digit: Digit, rng: Rng) -> Image.Image:
    """The box's line is 2 to 8 pixels wide, black to grey; it may be turned by up to 3 degrees."""
    levels, margin, width = _written(digit, rng), int(rng.integers(8, 50)), int(rng.integers(2, 9))
    lines = Image.new("L", (SIDE, SIDE))
    ImageDraw.Draw(lines).rectangle((margin, margin, SIDE - margin, SIDE - margin), outline=255, width=width)
    lines = lines.rotate(float(rng.choice([0, 0, rng.uniform(-3, 3)])), Image.Resampling.BICUBIC)
    cover = np.asarray(lines, float) / 255
    return _developed(levels * (1 - cover) + cover * np.minimum(levels, rng.uniform(0, 110)), rng)


def turned(digit: Digit, rng: Rng) -> Image.Image:
    return _developed(_written(digit, rng, TURN), rng)


def shaded(digit: Digit, rng: Rng) -> Image.Image:
    """A straight edge through the middle half; 35 to 65 % of the light behind it."""
    angle, (y, x) = rng.uniform(0, 2 * np.pi), np.mgrid[-1 : 1 : SIDE * 1j, -1 : 1 : SIDE * 1j]
    behind = np.cos(angle) * x + np.sin(angle) * y > rng.uniform(-0.4, 0.4)
    return _developed(_written(digit, rng) * np.where(behind, rng.uniform(0.35, 0.65), 1.0), rng)


DIGITS: dict[str, Callable[[Digit, Rng], Image.Image]] = {
    "as written": plain,
    "in a printed box": boxed,
    "turned by 30 degrees": turned,
    "hard shadow edge": shaded,
}


def letters() -> Iterator[Image.Image]:
    import matplotlib

    folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    for name in FONTS:
        font = ImageFont.truetype(str(folder / f"{name}.ttf"), 160)
        for letter in LETTERS:
            picture = Image.new("L", (SIDE, SIDE), 250)
            ImageDraw.Draw(picture).text((SIDE / 2, SIDE / 2), letter, fill=20, font=font, anchor="mm")
            yield picture


def shapes() -> Iterator[Image.Image]:
    """Discs, bars, polygons and stars, empty and filled."""
    rng = np.random.default_rng(0)
    for corners in (3, 4, 5, 6, 8):
        for inner in (1.0, 0.45):  # polygons and stars
            for width in (0, 6, 14):  # 0: filled
                yield _polygon(corners, inner, width, rng)
    for box in ((60, 60, 220, 220), (40, 120, 240, 160)):
        picture = Image.new("L", (SIDE, SIDE), 250)
        ImageDraw.Draw(picture).ellipse(box, fill=20)
        yield picture


def _polygon(corners: int, inner: float, width: int, rng: Rng) -> Image.Image:
    angles = rng.uniform(0, 2 * np.pi) + np.arange(2 * corners) * np.pi / corners
    reach = rng.uniform(70, 110) * np.where(np.arange(2 * corners) % 2, inner, 1.0)
    if inner == 1.0:
        angles, reach = angles[::2], reach[::2]
    corner = np.stack((140 + reach * np.cos(angles), 140 + reach * np.sin(angles)), axis=1)  # (n, 2)
    points = [(float(x), float(y)) for x, y in corner]
    picture = Image.new("L", (SIDE, SIDE), 250)
    ImageDraw.Draw(picture).polygon(points, fill=None if width else 20, outline=20, width=width or 1)
    return picture


NOT_DIGITS: dict[str, Callable[[], Iterator[Image.Image]]] = {"letters of four fonts": letters, "shapes": shapes}


def pictures(name: str, digits: Digit) -> Iterator[Image.Image]:
    """A picture of each digit, uint8 (n, 28, 28), by the function `name` of DIGITS."""
    rng = np.random.default_rng([0, *name.encode()])
    for digit in digits:
        yield DIGITS[name](digit, rng)


def _written(digit: Digit, rng: Rng, turn: float = 0.0) -> Levels:
    """Grey levels: dark ink, 40 to 55 % of the side, near the middle of light paper."""
    large = Image.fromarray(digit).resize((224, 224), Image.Resampling.BICUBIC)
    large = large.rotate(-turn, Image.Resampling.BICUBIC, expand=True)
    cut = large.crop(large.point(lambda level: 255 if level > 25 else 0).getbbox())
    scale = SIDE * rng.uniform(0.4, 0.55) / max(cut.size)
    cut = cut.resize((max(1, round(cut.width * scale)), max(1, round(cut.height * scale))), Image.Resampling.BICUBIC)
    x, y = rng.uniform(0.42, 0.58, 2)
    sheet = Image.new("L", (SIDE, SIDE))
    sheet.paste(cut, (round(x * (SIDE - cut.width)), round(y * (SIDE - cut.height))))
    cover = np.asarray(sheet, float) / 255
    written: Levels = rng.uniform(230, 255) * (1 - cover) + cover * rng.uniform(10, 60)
    return written


def _developed(levels: Levels, rng: Rng) -> Image.Image:
    """Adds a camera's noise of two grey levels."""
    return Image.fromarray(np.clip(np.rint(levels + rng.normal(0, 2, levels.shape)), 0, 255).astype(np.uint8))
