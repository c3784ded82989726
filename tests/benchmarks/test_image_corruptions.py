import numpy as np
import pytest

from benchmarks.measure.image_corruptions import PENS, blurred, dimmed, noisy, thinned


def square() -> np.ndarray:
    images = np.zeros((2, 1, 28, 28), np.uint8)
    images[:, :, 10:15, 8:20] = 200
    return images


@pytest.mark.parametrize("name", PENS)
def test_distorted_digits_are_bytes_and_the_same_at_every_call(name):
    images = square()
    changed = PENS[name](images)
    assert (changed.shape, changed.dtype) == (images.shape, np.uint8)
    assert (changed != images).any(axis=(1, 2, 3)).all()
    np.testing.assert_array_equal(changed, PENS[name](square()))
    np.testing.assert_array_equal(images, square())


def test_each_distortion_does_what_its_name_says():
    images = square()
    thin = thinned(images)
    assert (np.count_nonzero(thin[0]), thin.max()) == (3 * 10, 200), "a pixel from every side"
    assert blurred(images).sum() == pytest.approx(images.sum(), rel=0.01)
    assert 150 < blurred(images).max() < 200
    assert dimmed(images).max() == 100
    assert noisy(np.full((50, 1, 28, 28), 128, np.uint8)).std() == pytest.approx(255 * 0.2, rel=0.02)
