from dataclasses import replace

import numpy as np
import pytest

from models.data import DataError, load_dataset
from models.data.drawn_digits import drawn, with_drawn


def test_digits_lie_as_mnist_lays_them():
    images, labels = drawn(200)
    assert (images.shape, images.dtype, labels.dtype) == ((200, 1, 28, 28), np.uint8, np.int64)
    assert np.bincount(labels).tolist() == [20] * 10
    ink = images[:, 0] / 255.0
    assert (ink.max(axis=(1, 2)) > 0.6).all()
    assert ((ink > 0.1).any(axis=2).sum(axis=1) <= 20).all(), "a digit is at most 20 pixels high"
    for axis in (1, 2):
        mass = ink.sum(axis=3 - axis)
        centre = (mass * np.arange(28)).sum(axis=1) / mass.sum(axis=1)
        assert np.abs(centre - 14).max() <= 1, "its mass is in the middle"
    widths = [(image[0] > 64).any(axis=0).sum() for image in images[labels == 1]]
    assert np.mean(np.array(widths) >= 7) > 0.5, "most ones have a flag: MNIST's are mostly bars"


def test_the_same_seed_draws_the_same_digits_and_no_two_alike():
    images, _ = drawn(60)
    np.testing.assert_array_equal(images, drawn(60)[0])
    assert len({image.tobytes() for image in images}) == 60
    assert (drawn(60, seed=1)[0] != images).any()


def test_they_join_the_training_part_alone():
    digits = load_dataset("digits")
    more = with_drawn(digits, 30)
    assert len(more.train_labels) == len(digits.train_labels) + 30
    np.testing.assert_array_equal(more.train_images[-30:], drawn(30)[0])
    np.testing.assert_array_equal(more.test_images, digits.test_images)


def test_other_pictures_are_refused():
    digits = load_dataset("digits")
    named = replace(digits, labels=tuple("abcdefghij"))
    said = "digits: expected digits of 1x28x28 beside drawn digits, found other pictures"
    with pytest.raises(DataError, match=f"^{said}$"):
        with_drawn(named, 10)
