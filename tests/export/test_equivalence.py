import numpy as np
import pytest

from export.equivalence import ArgmaxDiffers, Comparison, DtypesDiffer, ShapesDiffer, ValuesDiffer, compare

IMAGES = np.random.default_rng(0).integers(0, 256, (64, 1, 28, 28), np.uint8)
WEIGHTS = np.random.default_rng(1).standard_normal((784, 10)).astype(np.float32) / 255


def right(images: np.ndarray) -> np.ndarray:
    return images.reshape(len(images), -1).astype(np.float32) @ WEIGHTS


def check(found: object, tolerance: float = 1e-4, images: np.ndarray = IMAGES) -> Comparison:
    return compare("b against a", right, found, images, tolerance)


def test_the_measured_error_and_the_tolerance_are_reported() -> None:
    proof = check(lambda images: right(images) + np.float32(5e-5))
    assert proof.max_abs_error == pytest.approx(5e-5, rel=0.1)
    assert proof.images == 64, "batches of 1, 2, 7 and 64 take the same images"
    assert "max |error| 5.0" in str(proof)
    assert "tolerance 1.00e-04" in str(proof)


def test_values_beyond_the_tolerance() -> None:
    with pytest.raises(ValuesDiffer, match=r"b against a: expected an error of at most 1.00e-04 at batch 1, found 2.0"):
        check(lambda images: right(images) + np.float32(2e-4))


def test_values_that_differ_at_one_batch_size_only() -> None:
    with pytest.raises(ValuesDiffer, match="at batch 7"):
        check(lambda images: right(images) * (2 if len(images) == 7 else 1))


def test_nan_fails() -> None:
    with pytest.raises(ValuesDiffer, match="found nan"):
        check(lambda images: right(images) * np.float32(np.nan))


def test_shapes() -> None:
    with pytest.raises(ShapesDiffer, match=r"expected logits \(1, 10\) at batch 1, found \(1, 9\)"):
        check(lambda images: right(images)[:, :9])


def test_dtypes() -> None:
    with pytest.raises(DtypesDiffer, match="expected float32, found float64"):
        check(lambda images: right(images).astype(np.float64))


def two_classes(first: float, second: float) -> object:
    return lambda images: np.tile(np.float32([first, second]), (len(images), 1))


def test_another_class_within_the_tolerance() -> None:
    with pytest.raises(ArgmaxDiffers, match="expected class 1 of image 0, found 0"):
        compare("close", two_classes(1, 1 + 5e-5), two_classes(1 + 5e-5, 1), IMAGES, 1e-4)


def test_a_tie_is_no_difference() -> None:
    assert compare("tie", two_classes(1, 1 + 5e-6), two_classes(1 + 5e-6, 1), IMAGES, 1e-4).max_abs_error < 1e-5


def test_nothing_compared_is_an_error() -> None:
    with pytest.raises(ShapesDiffer, match="expected 1 images to compare, found 0"):
        check(right, images=IMAGES[:0])
    with pytest.raises(ShapesDiffer, match="expected images to compare, found none"):
        compare("nothing", right, right, IMAGES, 1e-4, [])
