"""Pictures with more than eight bits a pixel, as scanners and scientific cameras write them, to eight."""

import numpy as np
from PIL import Image


def eight_bits(image: Image.Image) -> Image.Image:
    """Mode "I;16", "I" or "F" -> mode "L"; a picture of any other mode comes back as it is."""
    if image.mode.startswith("I;16"):
        deep = np.asarray(image)
        spare_bits = max(0, int(deep.max()).bit_length() - 8)  # many cameras and scanners use 10 to 14 of the 16
        return Image.fromarray((deep >> spare_bits).astype(np.uint8))
    if image.mode in ("I", "F"):  # the picture alone tells what black and white are
        with np.errstate(invalid="ignore"):  # of some NaN the conversion itself complains
            values = np.array(image, dtype=np.float32)
        np.nan_to_num(values, copy=False)
        values /= max(float(values.max()), -float(values.min())) or 1  # first, for the range may be no float32
        values -= values.min()
        values *= 255 / (float(values.max()) or 1)
        return Image.fromarray(values.astype(np.uint8))
    return image
