"""Predictions as text: a line for people, below it the best labels and what the model saw; as JSON; as CSV."""

import csv
import io
import json
import os
import sys
from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from clients.prediction import Prediction

Form = Literal["text", "picture", "json", "csv"]


def lines(form: Form, name: str, pixels: NDArray[np.uint8], prediction: Prediction, model: str, top: int | None) -> str:
    """What is printed of one image: its name, its pixels (C, h, w) where they are shown, the `top` best labels."""
    if form == "json":
        return _json(name, prediction, model, top or 1)
    if form == "csv":
        best = [value for pair in prediction.top(top or 1) for value in pair]
        return _row([name, *best, model, prediction.version, round(prediction.latency_ms, 3)])
    text = [f"{printable(name)}: {prediction.label} ({100 * prediction.probability:.1f} %)"]
    ranked = prediction.top(top or 0)
    width = max((len(label) for label, _ in ranked), default=0)
    text += [f"  {label:>{width}}  {100 * probability:5.1f} %" for label, probability in ranked]
    if form == "picture":
        text += blocks(pixels, colour=sys.stdout.isatty() and "NO_COLOR" not in os.environ)
    return "\n".join(text)


def csv_header(top: int | None, labels: int) -> str:
    """The names of the columns, of which there are two for each of the `top` best labels."""
    more = [f"{column}_{rank}" for rank in range(2, min(top or 1, labels) + 1) for column in ("label", "probability")]
    return _row(["file", "label", "probability", *more, "model", "version", "latency_ms"])


def printable(text: str) -> str:
    """Text on one line; what a terminal would obey and not show is written as in Python's strings."""
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def blocks(image: NDArray[np.uint8], colour: bool) -> list[str]:
    """An image (1 or 3, h, w) in half as many lines of w blocks: as it is where there are colours, else light ones
    from 128 on.
    """
    padded = np.pad(image, ((0, 0), (0, image.shape[1] % 2), (0, 0)))  # (C, h, w), h even
    rows = zip(*(padded[:, first::2].transpose(1, 2, 0).tolist() for first in (0, 1)), strict=True)
    pairs = [list(zip(upper, lower, strict=True)) for upper, lower in rows]
    if colour:
        return ["".join(_coloured(*pair) for pair in row) + "\x1b[0m" for row in pairs]
    return ["".join(" ▀▄█"[_is_light(upper) + 2 * _is_light(lower)] for upper, lower in row) for row in pairs]


def _coloured(upper: list[int], lower: list[int]) -> str:
    """The upper half of a character in one colour, the lower in another; of grey the terminal has 24."""
    if len(upper) == 1:
        return f"\x1b[38;5;{232 + upper[0] * 23 // 255};48;5;{232 + lower[0] * 23 // 255}m▀"
    return f"\x1b[38;2;{';'.join(map(str, upper))};48;2;{';'.join(map(str, lower))}m▀"


def _is_light(levels: list[int]) -> bool:
    """Of grey, or of red, green and blue, by their weights in ITU-R BT.601."""
    weights = (1000,) if len(levels) == 1 else (299, 587, 114)
    return sum(weight * level for weight, level in zip(weights, levels, strict=True)) >= 128_000


def _json(name: str, prediction: Prediction, model: str, top: int) -> str:
    answer = {
        "file": name,
        "label": prediction.label,
        "probability": prediction.probability,
        "top": [{"label": label, "probability": probability} for label, probability in prediction.top(top)],
        "model": model,
        "version": prediction.version,
        "latency_ms": round(prediction.latency_ms, 3),
    }
    return json.dumps(answer)


def _row(values: Sequence[object]) -> str:
    stream = io.StringIO()
    csv.writer(stream, lineterminator="").writerow(values)
    return stream.getvalue()
