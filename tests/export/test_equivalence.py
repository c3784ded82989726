import numpy as np
import pytest

from export.equivalence import Comparison, EquivalenceError, compare

IMAGES = np.random.default_rng(0).integers(0, 256, (64, 1, 28, 28), np.uint8)
WEIGHTS = np.random.default_rng(1).standard_normal((784, 10)).astype(np.float32) / 255


def right(images: np.ndarray) -> np.ndarray:
    return images.reshape(len(images), -1).astype(np.float32) @ WEIGHTS


def check(found: object, tolerance: float = 1e-4, images: np.ndarray = IMAGES) -> Comparison:
    return compare("b against a", right, found, images, tolerance)


def test_the_measured_error_and_the_tolerance_are_reported() -> None:
    comparison = check(lambda images: right(images) + np.float32(5e-5))
    assert comparison.max_abs_error == pytest.approx(5e-5, rel=0.1)
    assert comparison.images == 64, "batches of 1, 2, 7 and 64 take the same images"
    assert "max |error| 5.0" in str(comparison)
    assert "tolerance 1.00e-04" in str(comparison)


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (
            lambda it: right(it) + np.float32(2e-4),
            "b against a: expected an error of at most 1.00e-04 at batch 1",
        ),
        (lambda it: right(it) * (2 if len(it) == 7 else 1), "at batch 7"),
        (lambda it: right(it) * np.float32(np.nan), "found nan"),
        (lambda it: right(it)[:, :9], r"expected logits \(1, 10\) at batch 1, found \(1, 9\)"),
        (lambda it: right(it).astype(np.float64), "expected float32, found float64"),
    ],
    ids=["values", "one batch size", "NaN", "shape", "dtype"],
)
def test_what_differs_is_named(found: object, message: str) -> None:
    with pytest.raises(EquivalenceError, match=message):
        check(found)


def two_classes(first: float, second: float) -> object:
    return lambda images: np.tile(np.float32([first, second]), (len(images), 1))


def test_another_class_within_the_tolerance() -> None:
    with pytest.raises(EquivalenceError, match="expected class 1 of image 0, found 0"):
        compare("close", two_classes(1, 1 + 5e-5), two_classes(1 + 5e-5, 1), IMAGES, 1e-4)


def test_a_tie_is_no_difference() -> None:
    assert compare("tie", two_classes(1, 1 + 5e-6), two_classes(1 + 5e-6, 1), IMAGES, 1e-4).max_abs_error < 1e-5


def test_nothing_compared_is_an_error() -> None:
    with pytest.raises(EquivalenceError, match="expected 1 images to compare, found 0"):
        check(right, images=IMAGES[:0])
    with pytest.raises(EquivalenceError, match="expected images to compare, found none"):
        compare("nothing", right, right, IMAGES, 1e-4, [])
