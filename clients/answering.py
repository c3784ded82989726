"""Paths in, printed answers and an exit code out."""

from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain, repeat
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from clients.classifier import Classifier
from clients.errors import ClientError, InvalidImage
from clients.images.idx import IdxFile, is_idx
from clients.images.pictures import Picture, count_pictures, read_pictures
from clients.printing import Item, Printer
from clients.terminal import Terminal, printable

FAILED, SERVER, REJECTED = 1, 3, 4


class LabelsMismatch(Exception):
    pass


def answer_paths(paths: tuple[str, ...], labels: str | None, server: dict[str, Any], printer: Printer) -> int:
    """`server` has Classifier's keywords.

    Raises LabelsMismatch, ValueError for contradictory options, and OSError of standard output.
    """
    try:
        with ExitStack() as stack:
            truths = None if labels is None else stack.enter_context(_read_labels(paths, labels))
            terminal = stack.enter_context(Terminal(lambda: count_pictures(paths)))
            pictures = read_pictures(paths, terminal.failed, terminal.noted)
            first = next(pictures, None)
            if first is not None:
                classifier = stack.enter_context(Classifier(**server))
                Answering(classifier, truths, terminal, printer).run(chain([first], pictures))
    except ClientError as error:
        click.echo(f"Error: {printable(str(error))}", err=True)
        return FAILED if isinstance(error, InvalidImage) else SERVER
    return FAILED if terminal.failures else REJECTED if printer.rejected else 0


def _read_labels(paths: tuple[str, ...], labels: str) -> IdxFile:
    if len(paths) != 1 or not is_idx(paths[0]):
        raise LabelsMismatch("expected PATH to be one idx file of images")
    try:
        with IdxFile(paths[0], dimensions=2) as images, IdxFile(labels, dimensions=0) as whole:
            expected, count = images.count, sum(1 for _ in whole)
        if count != expected:
            raise LabelsMismatch(f"expected {expected} labels in {labels}, found {count}")
        return IdxFile(labels, dimensions=0)
    except InvalidImage as error:
        raise LabelsMismatch(str(error)) from error


@dataclass
class Answering:
    classifier: Classifier
    truths: IdxFile | None
    terminal: Terminal
    printer: Printer

    def __post_init__(self) -> None:
        self._waiting: deque[tuple[Item, int | None]] = deque()  # sent, not answered
        self._labels = self.classifier.model.labels
        if self.truths is not None:
            self._check(self.truths)

    def run(self, pictures: Iterator[Picture]) -> None:
        self.printer.print_header(self.terminal, len(self._labels))
        correct, answered = 0, 0
        for prediction in self.classifier.stream(self._inputs(pictures)):
            item, truth = self._waiting.popleft()
            rejected = self.printer.print_answer(self.terminal, item, prediction, self.classifier.model.name)
            answered += not rejected
            correct += not rejected and prediction.index == truth
        if self.truths is not None:
            self.printer.print_accuracy(self.terminal, correct, answered, self.truths.count)

    def _check(self, truths: IdxFile) -> None:
        with IdxFile(truths.name, dimensions=0) as labels:
            for number, label in enumerate(labels):
                if label >= len(self._labels):
                    raise LabelsMismatch(
                        f"expected labels from 0 to {len(self._labels) - 1}, as model "
                        f"{self.classifier.model.name!r} has {len(self._labels)} classes, found {label} "
                        f"in {truths.name}, item {number}"
                    )

    def _inputs(self, pictures: Iterator[Picture]) -> Iterator[NDArray[np.uint8]]:
        """Images (C, H, W)."""
        model = self.classifier.model
        for picture, truth in zip(pictures, map(int, self.truths) if self.truths else repeat(None), strict=False):
            try:
                images, shapes = picture.as_inputs(model.image_shape, model.preprocessing, self.printer.split)
            except InvalidImage as error:
                self.terminal.failed(picture.name, str(error))
                continue
            if shapes > 1 and not self.printer.split:
                note = f"{shapes} separate shapes, read as one digit; --split reads each"
                self.terminal.noted(picture.name, note)
            for number, image in enumerate(images, 1):
                self._waiting.append((Item(picture.name, image, number, shapes), truth))
                yield image
