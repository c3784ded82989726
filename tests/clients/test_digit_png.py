import numpy as np
from make_digit_png import SIDE, TARGET, draw
from PIL import Image


def test_digit_png_is_what_its_generator_makes():
    with Image.open(TARGET) as image:
        found = np.asarray(image.convert("RGB"), dtype=int)
    # Releases of Pillow may round an edge differently.
    assert np.abs(found - np.asarray(draw())).mean() < 0.5


def test_digit_png_is_dark_on_light_and_off_the_centre():
    with Image.open(TARGET) as image:
        assert image.size == (SIDE, SIDE)
        ink = np.asarray(image.convert("L")) < 120
    assert 0.03 < ink.mean() < 0.2
    centre = np.argwhere(ink).mean(axis=0)
    assert 4 < np.abs(centre - SIDE / 2).max() < 40
