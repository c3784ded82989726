"""Turns a picture of any mode into a grey channel in which ink and paper differ."""

import numpy as np
from PIL import Image

from clients.errors import InvalidImage
from common.pictures import convertible_mode

_SAMPLE_SIDE = 128  # pixels; reduced pictures are enough for statistics
_CONTRAST_RATIO = 2.0  # a colour of so much more contrast replaces brightness


def to_grey(image: Image.Image) -> Image.Image:
    """A picture of any mode -> mode "L". Raises InvalidImage for a mode that Pillow does not convert."""
    try:
        image = convertible_mode(image)
        if image.has_transparency_data:
            return _on_paper(image.convert("RGBA"))
        if image.mode == "RGB":
            return _most_contrasting(image)
        return image.convert("L")
    except ValueError as error:
        raise InvalidImage(f"expected grey or colour, found the mode {image.mode}: {error}") from error


def _on_paper(layered: Image.Image) -> Image.Image:
    """Mode "RGBA" -> "L" on white paper, or on black for light ink."""
    alpha, grey = layered.getchannel("A"), layered.convert("L")
    sides = (_SAMPLE_SIDE, _SAMPLE_SIDE)
    levels, weights = (
        np.asarray(channel.resize(sides, Image.Resampling.BOX), dtype=float) for channel in (grey, alpha)
    )
    light = (levels * weights).sum() > 128 * weights.sum()
    paper = Image.new("L", layered.size, 0 if light else 255)
    paper.paste(grey, mask=alpha)
    return paper


def _most_contrasting(colours: Image.Image) -> Image.Image:
    """Mode "RGB" -> "L": the brightness, or the colour of most contrast if ink and paper are about equally bright."""
    sample = colours.resize((_SAMPLE_SIDE, _SAMPLE_SIDE), Image.Resampling.NEAREST)
    brightness_contrast = float(np.asarray(sample.convert("L"), dtype=np.float32).std())
    contrasts = np.asarray(sample, dtype=np.float32).std(axis=(0, 1))  # (3,)
    if contrasts.max() > _CONTRAST_RATIO * brightness_contrast:
        return colours.getchannel(int(contrasts.argmax()))
    return colours.convert("L")
