"""Prints predictions as text, JSON or CSV to standard output; failures and notes go to standard error."""

import csv
import io
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import click
import numpy as np
from numpy.typing import NDArray

from clients.prediction import Prediction
from clients.served_models import ServedModel
from common.printable import printable

Limit = float | Literal["auto"]
LONGEST_PADDED = 40  # letters; a longer label makes its own line long, not all lines


@dataclass(frozen=True)
class Item:
    """An input of the model, and the picture that it comes from."""

    name: str
    pixels: NDArray[np.uint8]  # the model's input (C, h, w)
    shape: int  # number of the shape in its picture, from 1; 1 without --split
    shapes: int  # number of shapes in the picture
    suits: bool = True  # whether the picture looks like the model's training pictures


class Printer:
    """Prints in the form "text", "picture", "json" or "csv"; in a terminal with a progress bar on standard error.

    top:          so many labels are printed; None: only the most probable.
    split:        a picture has an answer per shape.
    reject_below: answers with a lower probability are rejected; "auto": answers that the model's threshold rejects.
    `failures` and `rejected` count what was printed.
    """

    def __init__(self, form: str, top: int | None, split: bool, reject_below: Limit | None) -> None:
        self.split = split
        self.failures = self.rejected = 0
        self._form = form
        self._top = top
        self.reject_below = reject_below
        self._shape_labels: list[str] = []  # of the current picture
        if isinstance(sys.stdout, io.TextIOWrapper):  # file names may not fit the terminal's encoding
            sys.stdout.reconfigure(errors="backslashreplace")
        self._bar: Any = None

    def expect(self, total: Callable[[], int | None]) -> None:
        """Opens the progress bar in a terminal; else `total` is not called.

        total: counts the pictures; returns None for too many.
        """
        if sys.stderr.isatty():
            from tqdm import tqdm

            self._bar = tqdm(total=total(), unit=" images", file=sys.stderr, delay=1, leave=False, dynamic_ncols=True)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()

    def print_failure(self, name: str, message: str) -> None:
        self.failures += 1
        text = message if message.startswith(name) else f"{name}: {message.removeprefix('image: ')}"
        self._print(f"Error: {printable(text)}", err=True)
        self._advance()

    def print_note(self, name: str, message: str) -> None:
        self._print(f"Note: {printable(name)}: {message}", err=True)

    def _print(self, lines: str, err: bool = False) -> None:
        stream = sys.stderr if err else sys.stdout
        if self._bar is not None and stream.isatty():  # the bar must make room
            self._bar.write(lines, file=stream)
        else:
            click.echo(lines, err=err)

    def _advance(self) -> None:
        if self._bar is not None:
            self._bar.update()

    def print_header(self, labels: int) -> None:
        if self._form == "csv":
            ranks = range(2, min(self._top or 1, labels) + 1)
            more = [f"{column}_{rank}" for rank in ranks for column in ("label", "probability")]
            shape = ["shape", "shapes"] if self.split else []
            rejected = [] if self.reject_below is None else ["rejected"]
            columns = ["file", *shape, "label", "probability", *more, *rejected, "model", "version", "latency_ms"]
            self._print(_csv_row(columns))

    def print_answer(self, item: Item, prediction: Prediction, model: ServedModel) -> bool:
        """Returns whether the answer was rejected."""
        rejected = self._is_rejected(item, prediction, model)
        self.rejected += rejected
        if self._form == "json":
            lines = self._json(item, prediction, model.name, rejected)
        elif self._form == "csv":
            lines = self._csv(item, prediction, model.name, rejected)
        else:
            lines = self._text(item, prediction, rejected)
        self._print(lines)
        if not self.split or item.shape == item.shapes:
            self._advance()
        return rejected

    def _is_rejected(self, item: Item, prediction: Prediction, model: ServedModel) -> bool:
        if self.reject_below == "auto":
            return model.rejects(prediction.evidence, item.suits)
        return self.reject_below is not None and prediction.probability < self.reject_below

    def print_accuracy(self, correct: int, answered: int, count: int) -> None:
        text = f"accuracy: {100 * correct / max(1, answered):.2f} % ({correct} of {answered})"
        if self.reject_below is not None:
            text += f", rejected: {100 * self.rejected / count:.2f} % ({self.rejected} of {count})"
        self._print(text, err=self._form in ("json", "csv"))

    def _text(self, item: Item, prediction: Prediction, rejected: bool) -> str:
        share = f"{100 * prediction.probability:.1f} %"
        picture, label = printable(item.name), printable(prediction.label)
        title = f"{picture}, shape {item.shape} of {item.shapes}" if self.split and item.shapes > 1 else picture
        verdict = f"rejected ({label} at {share})" if rejected else f"{label} ({share})"
        text = [f"{title}: {verdict}"]
        ranked = [(printable(name), probability) for name, probability in prediction.top(self._top or 0)]
        width = min(LONGEST_PADDED, max((len(name) for name, _ in ranked), default=0))
        text += [f"  {name:>{width}}  {100 * probability:5.1f} %" for name, probability in ranked]
        if self._form == "picture":
            text += block_lines(item.pixels, colour=sys.stdout.isatty() and "NO_COLOR" not in os.environ)
        if self.split and item.shapes > 1:
            self._shape_labels.append("?" if rejected else label)
            if item.shape == item.shapes:
                text.append(f"{picture}: {''.join(self._shape_labels)}")
                self._shape_labels = []
        return "\n".join(text)

    def _json(self, item: Item, prediction: Prediction, model: str, rejected: bool) -> str:
        top = [{"label": label, "probability": probability} for label, probability in prediction.top(self._top or 1)]
        answer = {
            "file": item.name,
            **({"shape": item.shape} if self.split else {}),
            "shapes": item.shapes,
            "label": prediction.label,
            "probability": prediction.probability,
            **({} if self.reject_below is None else {"rejected": rejected}),
            "top": top,
            "model": model,
            "version": prediction.version,
            "latency_ms": round(prediction.latency_ms, 3),
        }
        return json.dumps(answer)

    def _csv(self, item: Item, prediction: Prediction, model: str, rejected: bool) -> str:
        best = [value for label, share in prediction.top(self._top or 1) for value in (printable(label), share)]
        shape = [item.shape, item.shapes] if self.split else []
        verdict = [] if self.reject_below is None else [str(rejected).lower()]
        latency_ms = round(prediction.latency_ms, 3)
        return _csv_row([printable(item.name), *shape, *best, *verdict, model, prediction.version, latency_ms])


def block_lines(image: NDArray[np.uint8], colour: bool) -> list[str]:
    """uint8 (1 or 3, h, w) -> h / 2 lines of w characters, each of which shows two pixels, one above the other.

    Without colour a pixel is light or dark.
    """
    padded = np.pad(image, ((0, 0), (0, image.shape[1] % 2), (0, 0)))  # (C, h, w), h even
    rows = zip(*(padded[:, first::2].transpose(1, 2, 0).tolist() for first in (0, 1)), strict=True)
    pairs = [list(zip(upper, lower, strict=True)) for upper, lower in rows]
    if colour:
        return ["".join(_coloured_block(*pair) for pair in row) + "\x1b[0m" for row in pairs]
    return ["".join(" ▀▄█"[_is_light(upper) + 2 * _is_light(lower)] for upper, lower in row) for row in pairs]


def _coloured_block(upper: list[int], lower: list[int]) -> str:
    """A character of two grey or RGB colours, for a terminal. Grey levels become the 24 greys of terminals."""
    if len(upper) == 1:
        return f"\x1b[38;5;{232 + upper[0] * 23 // 255};48;5;{232 + lower[0] * 23 // 255}m▀"
    return f"\x1b[38;2;{';'.join(map(str, upper))};48;2;{';'.join(map(str, lower))}m▀"


def _is_light(levels: list[int]) -> bool:
    """Whether the brightness of grey or RGB, by ITU-R BT.601, is at least 128."""
    weights = (1000,) if len(levels) == 1 else (299, 587, 114)
    return sum(weight * level for weight, level in zip(weights, levels, strict=True)) >= 128_000


def _csv_row(values: Sequence[object]) -> str:
    stream = io.StringIO()
    csv.writer(stream, lineterminator="").writerow(values)
    return stream.getvalue()
