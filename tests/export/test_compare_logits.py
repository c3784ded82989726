import numpy as np
import pytest
from linear import IMAGES, LARGEST, right

from export.compare_logits import Comparison, EquivalenceError, compare, float32_error


def check(found: object, tolerance: float = 1e-4, images: np.ndarray = IMAGES) -> Comparison:
    return compare("b against a", right, found, images, tolerance / LARGEST)


def test_the_measured_error_and_the_tolerance_are_reported() -> None:
    comparison = check(lambda images: right(images) + np.float32(5e-5))
    assert comparison.max_abs_error == pytest.approx(5e-5, rel=0.1)
    assert comparison.images == 64, "batches of 1, 2, 7 and 64 take the same images"
    assert "max |error| 5.0" in str(comparison)
    assert "tolerance 1.00e-04" in str(comparison)
    assert f"({1e-4 / LARGEST:.0e} of the largest logit)" in str(comparison)


def test_an_error_counts_by_the_size_of_the_logits() -> None:
    def times(factor: float, error: float = 0.0) -> object:
        return lambda images: right(images) * np.float32(factor) * np.float32(1 + error)

    for factor in (1e-4, 1.0, 1e4):
        assert compare("sizes", times(factor), times(factor, 5e-5), IMAGES, 1e-4).relative == 1e-4
        with pytest.raises(EquivalenceError, match=r"sizes: expected an error of at most 1.0e-04 .*, found 2.0e-04"):
            compare("sizes", times(factor), times(factor, 2e-4), IMAGES, 1e-4)


def off_by(relative: float) -> object:
    return lambda images: right(images) + np.float32(relative * LARGEST)


def exact(images: np.ndarray) -> np.ndarray:
    return right(images).astype(np.float64)


def test_an_error_may_be_twice_the_networks_own_beside_exact_answers() -> None:
    for own, error in ((5e-5, -9e-5), (1e-6, 9e-6), (0.0, 9e-6)):
        comparison = compare("own", off_by(own), off_by(error), IMAGES, 1e-5, exact=exact)
        assert comparison.float32_error == pytest.approx(own * LARGEST, rel=0.2, abs=1e-6)
        assert f"where the network's own is {comparison.float32_error:.2e}" in str(comparison)
    for own, error in ((5e-5, -3e-4), (1e-6, 3e-5), (0.0, 3e-5)):
        with pytest.raises(EquivalenceError, match=r"own: expected an error of at most .*, found [23]"):
            compare("own", off_by(own), off_by(error), IMAGES, 1e-5, exact=exact)


def test_the_own_error_is_the_larger_of_two_programs_of_the_network() -> None:
    own = float32_error("own", exact, off_by(4e-5), IMAGES)
    assert own == pytest.approx(4e-5, rel=0.01)
    assert compare("own", off_by(1e-6), off_by(7e-5), IMAGES, 1e-5, exact=exact, float32_error=own).relative == 2 * own
    with pytest.raises(EquivalenceError, match=r"own: expected an error of at most 8.0e-05 .*, found 9"):
        compare("own", off_by(1e-6), off_by(9e-5), IMAGES, 1e-5, exact=exact, float32_error=own)
    with pytest.raises(EquivalenceError, match=r"own: expected the network itself within 3e-04"):
        float32_error("own", exact, off_by(4e-4), IMAGES)


@pytest.mark.parametrize("own", [1e-3, float("nan")])
def test_a_network_that_float32_does_not_hold_is_no_reference(own: float) -> None:
    with pytest.raises(
        EquivalenceError, match=r"own: expected the network itself within 3e-04 of its answers in float"
    ):
        compare("own", off_by(own), off_by(own), IMAGES, 1e-5, exact=exact)


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (
            lambda it: right(it) + np.float32(2e-4),
            r"b against a: expected an error of at most .* of the largest logit at batch 1, found",
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
    assert compare("tie", two_classes(1, 1 + 5e-7), two_classes(1 + 5e-7, 1), IMAGES, 1e-4).max_abs_error < 1e-6


def test_nothing_compared_is_an_error() -> None:
    with pytest.raises(EquivalenceError, match="expected 1 image to compare, found 0"):
        check(right, images=IMAGES[:0])
    with pytest.raises(EquivalenceError, match="expected images to compare, found none"):
        compare("nothing", right, right, IMAGES, 1e-4, [])
