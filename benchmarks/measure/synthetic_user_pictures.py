"""Pictures as people bring them: digits in a printed box, turned, or under the edge of a shadow; letters and shapes.

In: digits uint8 (n, 28, 28), 255 = ink. Out: grey pictures of 280 x 280 pixels, the same pictures at every call; and
rows of what networks answer to them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from benchmarks.measure.measured_network import Network, rewritten_classifier
from benchmarks.measure.progress import note

if TYPE_CHECKING:
    from models.data import Dataset

BROUGHT = 400  # digits for each kind of picture
SIDE = 280  # pixels
TURN = 30.0  # degrees, clockwise
FONTS = ("DejaVuSans", "DejaVuSerif", "STIXGeneralItalic", "cmtt10")
LETTERS = "ACEFHKLMNPRTUVWXYadehkmnrtuw"  # without letters that some people write as digits

Digit = NDArray[np.uint8]
Levels = NDArray[np.float64]  # grey levels (SIDE, SIDE), 255 = white paper
Rng = np.random.Generator


def plain(digit: Digit, rng: Rng) -> Image.Image:
    return _developed(_written(digit, rng), rng)


def boxed(digit: Digit, rng: Rng) -> Image.Image:
    """The box has lines of 2 to 8 pixels, black to grey, and may be turned by up to 3 degrees."""
    levels, margin, width = _written(digit, rng), int(rng.integers(8, 50)), int(rng.integers(2, 9))
    lines = Image.new("L", (SIDE, SIDE))
    ImageDraw.Draw(lines).rectangle((margin, margin, SIDE - margin, SIDE - margin), outline=255, width=width)
    lines = lines.rotate(float(rng.choice([0, 0, rng.uniform(-3, 3)])), Image.Resampling.BICUBIC)
    cover = np.asarray(lines, float) / 255
    return _developed(levels * (1 - cover) + cover * np.minimum(levels, rng.uniform(0, 110)), rng)


def turned(digit: Digit, rng: Rng) -> Image.Image:
    return _developed(_written(digit, rng, TURN), rng)


def shaded(digit: Digit, rng: Rng) -> Image.Image:
    """The shadow has a straight edge near the middle, and 35 to 65 % of the light."""
    angle, (y, x) = rng.uniform(0, 2 * np.pi), np.mgrid[-1 : 1 : SIDE * 1j, -1 : 1 : SIDE * 1j]
    in_shadow = np.cos(angle) * x + np.sin(angle) * y > rng.uniform(-0.4, 0.4)
    return _developed(_written(digit, rng) * np.where(in_shadow, rng.uniform(0.35, 0.65), 1.0), rng)


# Name of a kind of picture -> a function that draws a digit, uint8 (28, 28).
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
    """A polygon, or with `inner` < 1 a star: the radius of its inner corners. `width`: of the line; 0: filled."""
    angles = rng.uniform(0, 2 * np.pi) + np.arange(2 * corners) * np.pi / corners
    radius = rng.uniform(70, 110) * np.where(np.arange(2 * corners) % 2, inner, 1.0)
    if inner == 1.0:
        angles, radius = angles[::2], radius[::2]
    places = np.stack((140 + radius * np.cos(angles), 140 + radius * np.sin(angles)), axis=1)  # (n, 2)
    points = [(float(x), float(y)) for x, y in places]
    picture = Image.new("L", (SIDE, SIDE), 250)
    ImageDraw.Draw(picture).polygon(points, fill=None if width else 20, outline=20, width=width or 1)
    return picture


NOT_DIGITS: dict[str, Callable[[], Iterator[Image.Image]]] = {"letters of four fonts": letters, "shapes": shapes}


def pictures(name: str, digits: Digit) -> Iterator[Image.Image]:
    """Pictures of the digits, uint8 (n, 28, 28), of the kind `name` in DIGITS."""
    rng = np.random.default_rng([0, *name.encode()])
    for digit in digits:
        yield DIGITS[name](digit, rng)


def brought_rows(networks: Sequence[Network], data: Dataset) -> Iterator[dict[str, Any]]:
    """A row for each network and kind of picture, with shares of all pictures.

    A picture without ink counts as rejected.
    """
    from common.energy_score import evidence
    from models.checkpoints.checkpoint import load

    indices = np.linspace(0, len(data.test_labels) - 1, min(BROUGHT, len(data.test_labels))).astype(int)
    digit_images, digit_labels = data.test_images[indices, 0], data.test_labels[indices]
    cases = {name: (*_read(pictures(name, digit_images)), digit_labels) for name in DIGITS}
    cases |= {name: (*_read(draw()), None) for name, draw in NOT_DIGITS.items()}
    for network in networks:
        note(f"Measuring {network.name}")
        evidence_limit = load(network.path).metrics.get("evidence_limit", -np.inf)
        classify = rewritten_classifier(network.path)
        for name, (inputs, has_ink, labels) in cases.items():
            logits = classify(inputs)
            rejected = (evidence(logits) < evidence_limit) | ~has_ink
            row = {"model": network.name, "condition": name, "rejected": float(rejected.mean())}
            if labels is not None:
                right = (logits.argmax(1) == labels) & has_ink
                row |= {"accuracy": float(right.mean()), "right": float((right & ~rejected).mean())}
            yield {"dataset": data.name, "images": len(inputs), **row}


def _read(pictures: Iterable[Image.Image]) -> tuple[Digit, NDArray[np.bool_]]:
    """Reads pictures as clients do: inputs uint8 (n, 1, 28, 28), and which inputs have ink, bool (n,)."""
    from clients.preprocess import InvalidImage, to_model_input

    inputs = []
    for picture in pictures:
        try:
            inputs.append(to_model_input(picture))
        except InvalidImage:
            inputs.append(np.zeros((1, 28, 28), np.uint8))
    images = np.stack(inputs)
    return images, images.any(axis=(1, 2, 3))


def _written(digit: Digit, rng: Rng, turn: float = 0.0) -> Levels:
    """A digit of dark ink near the middle of light paper, of 40 to 55 % of its side, turned by `turn` degrees."""
    large = Image.fromarray(digit).resize((224, 224), Image.Resampling.BICUBIC)
    large = large.rotate(-turn, Image.Resampling.BICUBIC, expand=True)
    ink = large.crop(large.point(lambda level: 255 if level > 25 else 0).getbbox())
    scale = SIDE * rng.uniform(0.4, 0.55) / max(ink.size)
    ink = ink.resize((max(1, round(ink.width * scale)), max(1, round(ink.height * scale))), Image.Resampling.BICUBIC)
    x, y = rng.uniform(0.42, 0.58, 2)
    sheet = Image.new("L", (SIDE, SIDE))
    sheet.paste(ink, (round(x * (SIDE - ink.width)), round(y * (SIDE - ink.height))))
    cover = np.asarray(sheet, float) / 255
    written: Levels = rng.uniform(230, 255) * (1 - cover) + cover * rng.uniform(10, 60)
    return written


def _developed(levels: Levels, rng: Rng) -> Image.Image:
    """The picture with a camera's noise, of a standard deviation of two grey levels."""
    return Image.fromarray(np.clip(np.rint(levels + rng.normal(0, 2, levels.shape)), 0, 255).astype(np.uint8))
