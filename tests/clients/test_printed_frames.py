"""Printed frames around a digit."""

import numpy as np
import pytest
from PIL import Image, ImageDraw

from clients.images.ink import find_ink
from clients.images.mnist_layout import drawing_inputs
from clients.images.prepare import Preparation
from clients.images.printed_frames import TAKEN_AWAY, TAKEN_FOR_INK, find_frames

CLOSE = 10.0  # mean grey levels of 255
SIDE = 300
PEN = 30


def sheet(digit, ink=PEN):
    """A digit in the middle of a white sheet; its ink spans 75 to 225 pixels of the height."""
    cover = Image.fromarray(digit).resize((210, 210), Image.Resampling.BICUBIC)
    paper = Image.new("L", (SIDE, SIDE), 245)
    paper.paste(ink, (45, 45), cover)
    return paper


def framed(picture, margin=40, width=4, level=PEN, radius=0, turn=0.0, oval=False):
    lines = Image.new("L", picture.size)
    box = (margin, margin, picture.width - margin, picture.height - margin)
    pen = ImageDraw.Draw(lines)
    if oval:
        pen.ellipse(box, outline=255, width=width)
    else:
        pen.rounded_rectangle(box, radius, outline=255, width=width)
    picture = picture.copy()
    picture.paste(level, (0, 0), lines.rotate(turn, Image.Resampling.BICUBIC))
    return picture


def difference(picture, digit):
    return np.abs(drawing_inputs(picture)[0][0, 0].astype(int) - digit).mean()


@pytest.mark.parametrize(
    "how",
    [
        {}, {"width": 1}, {"width": 9}, {"level": 110}, {"radius": 25}, {"turn": 3.0}, {"margin": 15},
        {"oval": True, "margin": 15}, {"level": 0, "width": 7}, {"level": 0, "width": 5, "ink": 165},
    ],
)  # fmt: skip
def test_a_frame_is_taken_away_and_named(digit, how):
    ink = how.get("ink", PEN)
    picture = framed(sheet(digit, ink), **{name: value for name, value in how.items() if name != "ink"})
    assert difference(picture, digit) < CLOSE
    notes = Preparation((1, 28, 28), "ink", None, None).prepare(picture).notes
    assert notes == (() if how.get("width") == 1 else (TAKEN_AWAY,))  # a hairline was never taken for ink
    inverted = Image.fromarray(255 - np.asarray(picture))
    assert difference(inverted, digit) < CLOSE


def test_without_the_search_for_frames_the_frame_is_ink(digit, monkeypatch):
    monkeypatch.setattr("clients.images.ink.find_frames", lambda strokes: None)
    assert difference(framed(sheet(digit)), digit) > 2 * CLOSE


def test_a_frame_in_another_and_a_picture_cut_out_along_its_frame(digit):
    assert difference(framed(framed(sheet(digit), margin=20), margin=32), digit) < CLOSE
    cut = framed(sheet(digit), margin=0, width=6)
    assert difference(cut, digit) < CLOSE
    assert drawing_inputs(cut)[2] == (TAKEN_AWAY,)


def test_a_digit_that_touches_its_frame_keeps_its_ink(digit):
    picture = sheet(digit)
    top = int(np.flatnonzero((np.asarray(picture) < 100).any(axis=1))[0])
    ImageDraw.Draw(picture).rectangle((50, top, 250, 265), outline=PEN, width=3)
    assert drawing_inputs(picture)[2] == (TAKEN_AWAY,)
    assert difference(picture, digit) < 2 * CLOSE


def test_a_row_of_boxes_is_split_into_its_digits(digit):
    row = Image.new("L", (3 * SIDE, SIDE), 245)
    for place in range(3):
        row.paste(framed(sheet(digit)), (place * SIDE, 0))
    images, shapes, notes = drawing_inputs(row, split=True)
    assert (shapes, notes) == (3, (TAKEN_AWAY,))
    assert all(np.abs(image[0].astype(int) - digit).mean() < 2 * CLOSE for image in images)


def segments(lit, width=14):
    """A digit of seven segments: top, upper left, upper right, middle, lower left, lower right, bottom."""
    lines = [(70, 40, 200, 40), (70, 40, 70, 150), (200, 40, 200, 150), (70, 150, 200, 150), (70, 150, 70, 260)]
    lines += [(200, 150, 200, 260), (70, 260, 200, 260)]
    picture = Image.new("L", (SIDE, SIDE), 245)
    for line, on in zip(lines, lit, strict=True):
        if on:
            ImageDraw.Draw(picture).line(line, fill=PEN, width=width)
    return picture


@pytest.mark.parametrize("width", [8, 14, 24])
@pytest.mark.parametrize(
    "lit", [(1, 1, 1, 0, 1, 1, 1), (1, 1, 1, 1, 1, 1, 1), (1, 1, 0, 1, 1, 1, 1), (1, 1, 1, 1, 0, 1, 1)]
)
def test_digits_of_straight_lines_stay_whole(lit, width):
    ink, notes = find_ink(segments(lit, width))
    assert TAKEN_AWAY not in notes
    assert ink.shape[0] > 200
    assert ink.shape[1] > 120


def test_an_empty_box_is_named(digit):
    _, _, notes = drawing_inputs(framed(Image.new("L", (SIDE, SIDE), 245), width=3))
    assert notes == (TAKEN_FOR_INK,)


def test_a_zero_with_a_dot_and_a_bar_are_no_frames():
    picture = Image.new("L", (SIDE, SIDE), 245)
    ImageDraw.Draw(picture).ellipse((90, 40, 210, 260), outline=PEN, width=16)
    ImageDraw.Draw(picture).ellipse((135, 135, 165, 165), fill=PEN)
    assert drawing_inputs(picture)[2] == ()
    bar = np.zeros((200, 60), bool)
    bar[20:180, 20:40] = True
    assert find_frames(bar) is None


@pytest.mark.slow
def test_no_frame_is_found_in_digits_alone(mnist):
    notes = [drawing_inputs(Image.fromarray(255 - image).resize((280, 280)))[2] for image in mnist[:100]]
    assert sum(TAKEN_AWAY in each for each in notes) == 0
    assert sum(TAKEN_FOR_INK in each for each in notes) <= 1
