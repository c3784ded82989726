import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from infer_command import ask
from PIL import Image
from stand_in import DESCRIPTION, StandIn

from clients.images.decode import photo_to_model_input
from clients.images.picture_source import Picture
from clients.images.prepare import Preparation
from clients.images.training_photo_match import Looks, background_of, check_photo
from clients.preprocess import InvalidImage, prepare
from common.background_and_fill import background_and_fill, same_background
from models.data import load_idx_part

COLOUR = np.random.default_rng(0).integers(0, 256, (32, 32, 3), np.uint8)
DIGIT_PNG = Path(__file__).parents[2] / "digit.png"
GREY = np.random.default_rng(1).integers(0, 256, (28, 28), np.uint8)


def test_a_picture_of_the_models_size_is_unchanged() -> None:
    found = photo_to_model_input(Image.fromarray(COLOUR), (3, 32, 32))
    assert (found.dtype, found.flags.c_contiguous) == (np.uint8, True)
    np.testing.assert_array_equal(found, COLOUR.transpose(2, 0, 1))
    np.testing.assert_array_equal(photo_to_model_input(Image.fromarray(GREY), (1, 28, 28))[0], GREY)


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
    "mode", ["1", "L", "LA", "P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr", "HSV", "LAB", "I;16", "I", "F"]
)
@pytest.mark.parametrize("channels", [1, 3])
def test_every_mode(mode: str, channels: int) -> None:
    found = photo_to_model_input(Image.new(mode, (40, 30)), (channels, 32, 32))
    assert (found.shape, found.dtype) == ((channels, 32, 32), np.uint8)


@pytest.mark.parametrize("bits", [10, 12, 14, 16])
def test_a_scanners_pictures_keep_their_brightness(bits: int) -> None:
    """Of two pictures the darker stays darker, and twice as dark: no picture is scaled by its own brightest pixel."""
    bright, dark = (
        photo_to_model_input(Image.new("I;16", (32, 32), part * 2**bits // 8), (1, 32, 32)).max() for part in (7, 3)
    )
    assert (bright, dark) == (224, 96)


def test_transparent_pixels_become_white() -> None:
    picture = Image.new("RGBA", (32, 32), (255, 0, 0, 0))
    picture.paste((0, 0, 200, 255), (0, 0, 16, 32))
    found = photo_to_model_input(picture, (3, 32, 32))
    assert (found[:, 5, 5].tolist(), found[:, 5, 25].tolist()) == ([0, 0, 200], [255, 255, 255])


@pytest.mark.parametrize("size", [(1, 1), (1, 5000), (5000, 1), (31, 33)])
def test_pictures_of_odd_sizes(size: tuple[int, int]) -> None:
    found = photo_to_model_input(Image.new("RGB", size, (9, 8, 7)), (3, 32, 32))
    assert {tuple(pixel) for pixel in found.reshape(3, -1).T.tolist()} == {(9, 8, 7)}


def test_an_error_of_preparation_names_the_picture() -> None:
    with pytest.raises(InvalidImage, match=r"^image: expected grey or colour, found the mode La"):
        photo_to_model_input(Image.new("La", (30, 30)), (1, 32, 32))
    with pytest.raises(InvalidImage, match=r"expected a model of 1 or 3 channels, found 4"):
        photo_to_model_input(Image.new("RGB", (30, 30)), (4, 32, 32))


def test_the_preprocessing_of_the_model_is_used(digit: np.ndarray) -> None:
    dark_on_light = Image.fromarray(255 - digit).resize((140, 140))
    assert prepare(dark_on_light, (1, 28, 28), "ink")[0, 0, 0] == 0
    assert prepare(dark_on_light, (1, 28, 28), "photo")[0, 0, 0] == 255


def test_an_image_of_an_idx_file() -> None:
    picture = Picture("images[0]", GREY)

    def inputs(shape: tuple[int, int, int]) -> np.ndarray:
        return picture.as_inputs(Preparation(shape, "photo", None, None), split=False).images

    np.testing.assert_array_equal(inputs((1, 28, 28))[0], GREY[None])
    np.testing.assert_array_equal(inputs((3, 28, 28))[0], np.stack([GREY] * 3))
    assert inputs((1, 32, 32)).shape == (1, 1, 32, 32)


def thing(background: int, ink: int, margin: int, channels: int = 1) -> np.ndarray:
    """uint8 (channels, 28, 28): a square with a margin."""
    pixels = np.full((channels, 28, 28), background, np.uint8)
    pixels[:, margin : 28 - margin, margin : 28 - margin] = ink
    return pixels


@pytest.mark.parametrize("channels", [1, 3])
def test_a_thing_on_the_other_background_is_inverted(channels: int) -> None:
    on_white, on_black = thing(255, 40, 1, channels), thing(0, 215, 1, channels)
    found, note, suits = check_photo(on_white, Looks("dark", 0.9))
    np.testing.assert_array_equal(found, on_black)
    assert (note, suits) == ("inverted: its background is light, that of the model's training pictures dark", True)
    found, note, suits = check_photo(on_black, Looks("light", 0.9))
    np.testing.assert_array_equal(found, on_white)
    assert (note, suits) == ("inverted: its background is dark, that of the model's training pictures light", True)


@pytest.mark.parametrize(
    ("pixels", "looks"),
    [(thing(0, 215, 1), Looks("dark", 0.9)), (thing(128, 255, 3), Looks("dark", 0.9)), (thing(255, 40, 5), None)],
    ids=["alike", "neither dark nor light", "without looks"],
)
def test_other_photos_stay_unchanged(pixels: np.ndarray, looks: Looks | None) -> None:
    found, note, suits = check_photo(pixels, looks)
    np.testing.assert_array_equal(found, pixels)
    assert (note, suits) == ("", True)


def test_a_small_thing_is_named() -> None:
    """Digits of MNIST fill 71 % of their frame, garments at least 93 %."""
    _, note, suits = check_photo(thing(0, 215, 4), Looks("dark", 0.93))
    assert note.startswith(
        "unlike the model's training pictures, so the answer may mean nothing: the thing fills 71 % of "
    )
    assert "93 % or more" in note
    assert not suits
    assert check_photo(thing(0, 215, 4), Looks("dark", 1.0)).note.endswith("the training pictures all of it; crop it")
    assert not check_photo(thing(0, 0, 0), Looks("dark", 0.93)).suits


def test_training_pictures_are_measured_as_clients_measure(fashion_mnist_dir: Path) -> None:
    """Also that garments are taken for garments."""
    images, labels = load_idx_part("fashion-mnist", fashion_mnist_dir, "test")
    measured = background_and_fill(images, labels)
    assert measured == {"background": "dark", "fill": pytest.approx(0.93, abs=0.011)}
    backgrounds = [background_of(each) for each in images]
    assert backgrounds.count("dark") >= 9990
    assert backgrounds.count("light") == 0
    noted = [not check_photo(each, Looks(**measured)).suits for each in images[:2000]]
    assert np.mean(noted) < 0.005
    assert background_and_fill(255 - images, labels) == measured | {"background": "light"}


def test_pictures_with_other_backgrounds_are_not_described() -> None:
    images = np.concatenate([np.stack([thing(level, 128, 2) for _ in range(50)]) for level in (0, 255)])
    assert background_and_fill(images, np.zeros(100, np.int64)) == {}


def test_a_rare_class_with_another_background_is_not_inverted() -> None:
    images = np.stack([thing(0, 128, 2)] * 999 + [thing(255, 128, 2)])
    assert background_and_fill(images, np.zeros(1000, np.int64))["background"] == "dark"
    assert background_and_fill(images, np.repeat([0, 1], [999, 1])) == {}
    many = np.concatenate([np.repeat(images[:1], 9_998, axis=0), images[-1:]])  # every third is measured, not the last
    assert background_and_fill(many, np.repeat([0, 1], [9_998, 1])) == {}


@pytest.mark.parametrize(
    ("count", "levels", "told"),
    [
        (35, (255, 255), False),  # the next may be dark
        (37, (255, 255), True),
        (1000, (192, 255), False),
        (1000, (225, 255), True),
        (1000, (0, 30), True),
        (1000, (0, 63), False),
    ],
)
def test_few_backgrounds_or_widely_spread_ones_are_no_rule(count: int, levels: tuple[int, int], told: bool) -> None:
    """Of 24 icons all were light, of their own test part not."""
    images = np.stack([thing(levels[number % 2], 128, 2) for number in range(count)])
    labels = np.arange(count) // 2 % 3
    assert ("background" in background_and_fill(images, labels)) == told
    assert same_background(images, labels) == ("light" if levels[1] > 128 else "dark")


@pytest.fixture
def garments() -> Iterator[StandIn]:
    """A server whose model was trained on garments, light on black."""
    stand_in = StandIn()
    described = {**DESCRIPTION, "preprocessing": "photo", "background": "dark", "fill": 0.93}
    stand_in.parameters = {"model_config": json.dumps(described)}
    with stand_in.serving("http"):
        yield stand_in


def test_infer_tells_of_a_picture_that_it_inverts(garments: StandIn, tmp_path: Path) -> None:
    path = tmp_path / "shirt.png"
    Image.fromarray(thing(255, 40, 1)[0]).save(path)
    code, lines, errors = ask(garments, path, "--json")
    assert (code, len(lines)) == (0, 1)
    assert errors == [f"Note: {path}: inverted: its background is light, that of the model's training pictures dark"]
    Image.fromarray(thing(0, 215, 1)[0]).save(path)
    assert ask(garments, path, "--json")[1][0].split("version")[0] == lines[0].split("version")[0]


def test_a_digit_is_no_garment(garments: StandIn) -> None:
    code, lines, errors = ask(garments, DIGIT_PNG)
    assert (code, len(lines), len(errors)) == (0, 1, 1)
    unlike = "unlike the model's training pictures, so the answer may mean nothing"
    assert errors[0].startswith(f"Note: {DIGIT_PNG}: {unlike}: the thing fills 6")
    garments.parameters["evidence_limit"] = "-100"  # that no logits reach
    code, lines, _ = ask(garments, DIGIT_PNG, "--reject-below", "auto")
    assert (code, len(lines), ": rejected (" in lines[0]) == (4, 1, True)


def test_a_photo_has_no_shapes_to_split(garments: StandIn) -> None:
    code, lines, errors = ask(garments, DIGIT_PNG, "--split")
    assert (code, lines) == (2, [])
    assert errors[-1] == "Error: --split: expected a model of drawings, found 'net', a model of photos"


@pytest.mark.parametrize("wrong", [{"background": "green"}, {"fill": 2}, {"fill": "much"}])
def test_an_invalid_background_or_fill_is_refused(garments: StandIn, wrong: dict[str, object]) -> None:
    described = {**json.loads(garments.parameters["model_config"]), **wrong}
    garments.parameters = {"model_config": json.dumps(described)}
    code, _, errors = ask(garments, DIGIT_PNG)
    assert code == 3
    assert "its parameters do not describe a classifier" in errors[0]
