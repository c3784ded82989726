import io
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from clients.preprocess import BlankImage, ClientError, InvalidImage, read_image, to_model_input


@pytest.mark.parametrize("side", [1, 2, 28, 300, 1500])
@pytest.mark.parametrize("level", [0, 128, 255])
def test_one_colour_is_blank(side, level):
    with pytest.raises(BlankImage, match="no ink"):
        to_model_input(Image.new("L", (side, side), level))


@pytest.mark.parametrize(
    ("size", "spread", "found"),
    [
        ((28, 28), 2, "a contrast above 20"),
        ((1000, 1500), 40, ""),
        ((28, 28), 40, "strokes .*, found noise"),
        ((300, 200), 40, "strokes .*, found noise"),
    ],
)
def test_noise_alone_is_blank(size, spread, found):
    rng = np.random.default_rng(0)
    for _ in range(5):
        noise = np.clip(rng.normal(128, spread, size), 0, 255).astype(np.uint8)
        with pytest.raises(BlankImage, match=f"no ink found: expected {found}"):
            to_model_input(Image.fromarray(noise))


def test_a_gradient_of_light_and_a_speck_are_blank():
    slope = np.add.outer(np.linspace(80, 120, 200), np.linspace(0, 100, 200)).astype(np.uint8)
    with pytest.raises(BlankImage, match="no ink"):
        to_model_input(Image.fromarray(slope))
    sheet = np.full((200, 200), 250, dtype=np.uint8)
    sheet[90:93, 40:42] = 0
    with pytest.raises(BlankImage, match="specks"):
        to_model_input(Image.fromarray(sheet))


def test_no_such_file_and_a_folder(tmp_path):
    with pytest.raises(InvalidImage, match=r"seven\.png: expected a picture, found No such file or directory"):
        read_image(tmp_path / "seven.png")
    with pytest.raises(InvalidImage, match=r"expected a picture, found Is a directory$"):
        read_image(tmp_path)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e38])
def test_nan_and_infinity_are_blank(value):
    values = np.zeros((40, 40), dtype=np.float32)
    values[5, 5] = value
    with pytest.raises(BlankImage):
        to_model_input(Image.fromarray(values))


def test_exactly_the_least_contrast_is_blank():
    pixels = np.full((40, 40), 20, np.uint8)
    pixels[10:30, 18:22] = 0
    with pytest.raises(BlankImage, match="expected a contrast above 20 of 255 grey levels, found 20"):
        to_model_input(Image.fromarray(pixels))
    pixels[pixels == 20] = 22
    assert to_model_input(Image.fromarray(pixels)).max() == 255


@pytest.mark.parametrize("levels", [(1e37, 1e37), (-3e38, 3e38), (0, 1e-45), (-1e-40, 0)])
def test_floats_of_any_range(digit, levels):
    values = np.where(np.kron(digit > 128, np.ones((8, 8), bool)), *map(np.float32, levels)).astype(np.float32)
    if levels[0] == levels[1]:
        with pytest.raises(BlankImage):
            to_model_input(Image.fromarray(values))
    else:
        assert to_model_input(Image.fromarray(values)).max() == 255


@settings(deadline=2000)
@given(st.integers(1, 40), st.integers(1, 40), st.sampled_from(["1", "L", "LA", "RGBA", "I", "F", "I;16"]), st.data())
def test_any_pixels_give_an_image_or_a_refusal(width, height, mode, data):
    length = len(Image.new(mode, (width, height)).tobytes())
    seed = data.draw(st.binary(min_size=1, max_size=64))
    image = Image.frombytes(mode, (width, height), (seed * (length // len(seed) + 1))[:length])
    stream = io.BytesIO()
    image.save(stream, "TIFF")
    with suppress(ClientError):
        found = to_model_input(read_image(stream))
        assert (found.shape, found.max()) == ((1, 28, 28), 255)
