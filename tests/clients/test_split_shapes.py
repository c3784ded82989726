import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageDraw
from scipy import ndimage

from clients.images.connected_components import label
from clients.images.ink import find_ink
from clients.images.mnist_layout import drawing_inputs
from clients.images.split_shapes import split_shapes
from clients.preprocess import to_model_input


def shapes(picture):
    return drawing_inputs(picture, split=True)[:2]


def drawn(*lines, size=(400, 200), width=12):
    picture = Image.new("L", size, 240)
    for line in lines:
        ImageDraw.Draw(picture).line(line, fill=20, width=width, joint="curve")
    return picture


FIVE = ([(140, 30), (80, 30), (75, 90), (130, 95), (140, 140), (80, 165)], [(146, 24), (190, 20)])
ONE = [(300, 20), (300, 170)]


@pytest.mark.parametrize(
    ("lines", "count"),
    [
        ([ONE], 1),
        ([[(60, 20), (60, 90)], [(110, 20), (100, 180)], [(30, 100), (90, 98)]], 2),  # an open 4, as "11"
        ([[(60, 20), (40, 100), (140, 100)], [(110, 40), (105, 180)]], 1),
        ([FIVE[0], [(90, 10), (150, 8)]], 1),  # a loose flag
        ([FIVE[0], ONE], 2),
        ([[(40, 20), (40, 180)], [(120, 20), (120, 180)], ONE], 3),
        ([FIVE[0], [(215, 150), (210, 170)], ONE], 2),  # a comma between
        ([[(40, 20), (60, 180), (100, 100), (160, 180), (180, 20)]], 1),  # touching digits
    ],
)
def test_shapes_are_counted(lines, count):
    assert shapes(drawn(*lines))[1] == count


def test_each_shape_is_what_its_own_picture_gives():
    both = shapes(drawn(FIVE[0], ONE))[0]
    for image, line in zip(both, (FIVE[0], ONE), strict=True):
        assert np.abs(image.astype(int) - to_model_input(drawn(line))).mean() < 12


def test_a_single_shape_is_the_same_with_split(digit):
    picture = Image.fromarray(255 - digit).resize((200, 200))
    split, count = shapes(picture)
    assert count == 1
    np.testing.assert_array_equal(split[0], to_model_input(picture))


@settings(deadline=1000)
@given(st.integers(1, 40), st.integers(1, 40), st.floats(0, 1), st.integers(0, 1000))
def test_label_finds_the_parts_that_scipy_finds(height, width, share, seed):
    mask = np.random.default_rng(seed).random((height, width)) < share
    expected, count = ndimage.label(mask, np.ones((3, 3)))
    found, found_count = label(mask)
    assert found_count == count
    assert len(np.unique(np.stack([found.ravel(), expected.ravel()]), axis=1).T) == len(np.unique(expected))
    assert np.array_equal(found > 0, mask)


def test_scattered_ink_gives_a_bounded_number_of_shapes():
    mask = np.random.default_rng(0).random((300, 500)) < 0.03
    picture = Image.fromarray(np.where(mask, 0, 255).astype(np.uint8)).resize((1500, 900), Image.Resampling.NEAREST)
    inputs, count = shapes(picture)
    assert inputs.shape[0] == count < 512


@pytest.mark.slow
def test_mnist_digits_are_one_shape(mnist):
    counts = [len(split_shapes(find_ink(Image.fromarray(image))[0])) for image in mnist]
    assert counts.count(1) >= len(mnist) - 1
