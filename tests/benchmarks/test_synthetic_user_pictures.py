"""Difficult pictures, and what a network answers to them."""

from pathlib import Path

import numpy as np
import pytest
from commands import measured

import benchmarks.measure.synthetic_user_pictures as module
from benchmarks.accuracy import accuracy
from benchmarks.measure.synthetic_user_pictures import DIGITS, FONTS, LETTERS, NOT_DIGITS, SIDE, pictures
from clients.preprocess import to_model_input


def bar() -> np.ndarray:
    digits = np.zeros((3, 28, 28), np.uint8)
    digits[:, 4:24, 12:16] = 255
    return digits


@pytest.mark.parametrize("name", DIGITS)
def test_digits_are_drawn_the_same_at_every_call(name: str) -> None:
    first, again = ([np.asarray(picture) for picture in pictures(name, bar())] for _ in range(2))
    assert all(picture.shape == (SIDE, SIDE) for picture in first)
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first[0], first[1])


def test_each_kind_of_picture_is_as_its_name_says() -> None:
    upright, turned = (
        to_model_input(next(pictures(name, bar())))[0] for name in ("as written", "turned by 30 degrees")
    )
    middles = [np.median(np.flatnonzero(row > 128)) for row in turned if (row > 128).any()]
    assert middles[-1] - middles[0] < -5, "clockwise: the top goes to the right"
    assert np.ptp(np.flatnonzero((upright > 128).any(axis=0))) < 6
    shaded = np.asarray(next(pictures("hard shadow edge", bar())), float)
    assert np.percentile(shaded, 95) > 1.4 * np.percentile(shaded, 20)
    boxed = np.asarray(next(pictures("in a printed box", bar())))
    assert (boxed < 130).any(axis=1).mean() > 0.6


def test_pictures_of_no_digit_are_letters_and_shapes() -> None:
    assert {name: len([*draw()]) for name, draw in NOT_DIGITS.items()} == {
        "letters of four fonts": len(FONTS) * len(LETTERS),
        "shapes": 32,
    }


@pytest.mark.slow
def test_a_shipped_network_on_difficult_pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BROUGHT", 17)
    monkeypatch.setattr(module, "FONTS", FONTS[:2])
    options = ("--brought", "--model", "vitbn-late-deep", "--dataset", "digits")
    printed, written = measured(accuracy, tmp_path / "brought.json", *options)
    rows = {row["condition"]: row for row in written["rows"]}
    assert [*rows] == [*DIGITS, *NOT_DIGITS]
    assert rows["as written"]["images"] == 17
    for name in DIGITS:
        assert rows[name]["right"] <= rows[name]["accuracy"] <= rows[name]["right"] + rows[name]["rejected"] + 1e-9
    assert rows["in a printed box"]["accuracy"] > rows["as written"]["accuracy"] - 0.06
    assert rows["letters of four fonts"]["rejected"] > 0.7 > rows["as written"]["rejected"]
    assert f"{100 * rows['shapes']['rejected']:.1f}" in printed
