"""Turns a picture of any mode into one grey channel in which ink and paper differ."""

import numpy as np
from PIL import Image

from clients.errors import InvalidImage

_SAMPLE_SIDE = 128  # pixels
_TELLING = 2.0  # ratio of spreads above which a colour replaces brightness


def to_grey(image: Image.Image) -> Image.Image:
    """Any mode -> "L". Raises InvalidImage for a colour space without grey (Lab)."""
    image = eight_bits(image)
    try:
        if image.has_transparency_data:
            return _on_paper(image.convert("RGBA"))
        if image.mode == "RGB":
            return _most_telling(image)
        return image.convert("L")
    except ValueError as error:
        raise InvalidImage(f"expected grey or colour, found the mode {image.mode}: {error}") from error


def eight_bits(image: Image.Image) -> Image.Image:
    """Modes "I;16", "I" and "F" -> "L"; others stay."""
    if image.mode.startswith("I;16"):
        deep = np.asarray(image)
        spare_bits = max(0, int(deep.max()).bit_length() - 8)  # many devices use 10 to 14 bits
        return Image.fromarray((deep >> spare_bits).astype(np.uint8))
    if image.mode in ("I", "F"):  # no defined range: take the picture's range
        with np.errstate(invalid="ignore"):  # converting NaN warns
            values = np.array(image, dtype=np.float32)
        np.nan_to_num(values, copy=False)
        values /= max(float(values.max()), -float(values.min())) or 1  # first, as the range may overflow float32
        values -= values.min()
        values *= 255 / (float(values.max()) or 1)
        return Image.fromarray(values.astype(np.uint8))
    return image


def _on_paper(layered: Image.Image) -> Image.Image:
    """Mode "RGBA" -> "L" on white paper, or on black for light ink."""
    alpha, grey = layered.getchannel("A"), layered.convert("L")
    sides = (_SAMPLE_SIDE, _SAMPLE_SIDE)
    levels, weights = (np.asarray(each.resize(sides, Image.Resampling.BOX), dtype=float) for each in (grey, alpha))
    light = (levels * weights).sum() > 128 * weights.sum()
    paper = Image.new("L", layered.size, 0 if light else 255)
    paper.paste(grey, mask=alpha)
    return paper


def _most_telling(colours: Image.Image) -> Image.Image:
    """Mode "RGB" -> "L": brightness, or one colour if ink and paper are about equally bright."""
    sample = colours.resize((_SAMPLE_SIDE, _SAMPLE_SIDE), Image.Resampling.NEAREST)
    brightness = float(np.asarray(sample.convert("L"), dtype=np.float32).std())
    spreads = np.asarray(sample, dtype=np.float32).std(axis=(0, 1))  # (3,)
    if spreads.max() > _TELLING * brightness:
        return colours.getchannel(int(spreads.argmax()))
    return colours.convert("L")


def on_white(image: Image.Image) -> Image.Image:
    """The picture on white where it is transparent."""
    if not image.has_transparency_data:
        return image
    return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image.convert("RGBA"))
