import io

import numpy as np
import pytest
from PIL import ExifTags, Image

from clients.images.photo import photo_to_model_input
from clients.images.pictures import Picture
from clients.preprocess import InvalidImage, prepare, read_image

COLOUR = np.random.default_rng(0).integers(0, 256, (32, 32, 3), np.uint8)
GREY = np.random.default_rng(1).integers(0, 256, (28, 28), np.uint8)


def test_a_picture_of_the_models_size_is_unchanged() -> None:
    found = photo_to_model_input(Image.fromarray(COLOUR), (3, 32, 32))
    assert (found.dtype, found.flags.c_contiguous) == (np.uint8, True)
    np.testing.assert_array_equal(found, COLOUR.transpose(2, 0, 1))
    np.testing.assert_array_equal(photo_to_model_input(Image.fromarray(GREY), (1, 28, 28))[0], GREY)


def test_nothing_is_inverted() -> None:
    light = photo_to_model_input(Image.new("L", (100, 100), 240), (1, 28, 28))
    dark = photo_to_model_input(Image.new("L", (100, 100), 10), (1, 28, 28))
    assert (light.min(), light.max(), dark.min(), dark.max()) == (240, 240, 10, 10)


@pytest.mark.parametrize("size", [(400, 100), (100, 400)], ids=["wide", "tall"])
def test_the_middle_is_kept(size: tuple[int, int]) -> None:
    picture = Image.new("RGB", size, "red")
    width, height = size
    picture.paste((0, 0, 255), ((width - 100) // 2, (height - 100) // 2, (width + 100) // 2, (height + 100) // 2))
    found = photo_to_model_input(picture, (3, 32, 32))[:, 1:-1, 1:-1]
    np.testing.assert_array_equal(found, np.broadcast_to([[[0]], [[0]], [[255]]], found.shape))


def test_the_aspect_ratio_is_the_models() -> None:
    ramp = np.tile(np.arange(256, dtype=np.uint8), (256, 1))
    found = photo_to_model_input(Image.fromarray(ramp), (1, 32, 16))[0].astype(float)  # the middle half of the width
    assert found.shape == (32, 16)
    assert found[:, 0].mean() == pytest.approx(64 + 4, abs=3)
    assert found[:, -1].mean() == pytest.approx(192 - 4, abs=3)


def test_shrinking_does_not_alias() -> None:
    stripes = np.tile(np.array([0, 255], np.uint8), (320, 160))
    found = photo_to_model_input(Image.fromarray(stripes), (1, 32, 32))[0]
    assert np.abs(found.astype(int) - 127).max() <= 4
    nearest = np.asarray(Image.fromarray(stripes).resize((32, 32), Image.Resampling.NEAREST))
    assert np.abs(nearest.astype(int) - 127).max() > 100, "without antialiasing"


def test_grey_for_a_model_of_colour_and_colour_for_one_of_grey() -> None:
    found = photo_to_model_input(Image.fromarray(GREY), (3, 28, 28))
    assert (found == GREY).all()
    assert photo_to_model_input(Image.new("RGB", (9, 9), (0, 255, 0)), (1, 4, 4)).max() == 150  # 0.587 * 255


@pytest.mark.parametrize(
    "mode", ["1", "L", "LA", "P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr", "HSV", "I;16", "I", "F"]
)
@pytest.mark.parametrize("channels", [1, 3])
def test_every_mode(mode: str, channels: int) -> None:
    found = photo_to_model_input(Image.new(mode, (40, 30)), (channels, 32, 32))
    assert (found.shape, found.dtype) == ((channels, 32, 32), np.uint8)


def test_what_is_transparent_is_white() -> None:
    picture = Image.new("RGBA", (32, 32), (255, 0, 0, 0))
    picture.paste((0, 0, 200, 255), (0, 0, 16, 32))
    found = photo_to_model_input(picture, (3, 32, 32))
    assert (found[:, 5, 5].tolist(), found[:, 5, 25].tolist()) == ([0, 0, 200], [255, 255, 255])


@pytest.mark.parametrize("size", [(1, 1), (1, 5000), (5000, 1), (31, 33)])
def test_pictures_of_odd_sizes(size: tuple[int, int]) -> None:
    found = photo_to_model_input(Image.new("RGB", size, (9, 8, 7)), (3, 32, 32))
    assert {tuple(pixel) for pixel in found.reshape(3, -1).T.tolist()} == {(9, 8, 7)}


def test_a_photo_is_turned_upright() -> None:
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6
    stream = io.BytesIO()
    Image.fromarray(COLOUR).save(stream, "PNG", exif=exif)
    found = photo_to_model_input(read_image(stream), (3, 32, 32))
    np.testing.assert_array_equal(found, np.rot90(COLOUR, -1).transpose(2, 0, 1))


def test_what_cannot_be_prepared_is_named() -> None:
    with pytest.raises(InvalidImage, match=r"^image: expected grey or colour, found the mode LAB"):
        photo_to_model_input(Image.new("LAB", (30, 30)), (1, 32, 32))
    with pytest.raises(InvalidImage, match=r"expected a model of 1 or 3 channels, found 4"):
        photo_to_model_input(Image.new("RGB", (30, 30)), (4, 32, 32))


def test_the_model_says_which_way(digit: np.ndarray) -> None:
    dark_on_light = Image.fromarray(255 - digit).resize((140, 140))
    assert prepare(dark_on_light, (1, 28, 28), "ink")[0, 0, 0] == 0
    assert prepare(dark_on_light, (1, 28, 28), "photo")[0, 0, 0] == 255


def test_an_image_of_an_idx_file() -> None:
    picture = Picture("images[0]", GREY)
    np.testing.assert_array_equal(picture.as_inputs((1, 28, 28), "photo", split=False)[0][0], GREY[None])
    np.testing.assert_array_equal(picture.as_inputs((3, 28, 28), "photo", split=False)[0][0], np.stack([GREY] * 3))
    assert picture.as_inputs((1, 32, 32), "photo", split=False)[0].shape == (1, 1, 32, 32)
