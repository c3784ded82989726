"""`vitbn infer`: asks the server what pictures show, and prints labels with probabilities in order. Memory is bounded.

Exit codes: 0 all answered; 1 pictures failed, named on standard error; 2 usage; 3 server failed; 4 answers rejected;
130 interrupted; 141 the reader of the output closed it.
"""

from __future__ import annotations

import errno
import os
import sys
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any

import click

from clients.connection_options import FILE, connection_options, parse_options
from clients.errors import ClientError, InvalidImage
from clients.options import DEFAULTS, Options
from common.plurals import counted
from vitbn_packages import in_words

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from clients.classifier import Classifier, ServedModel
    from clients.images.picture_source import Picture
    from clients.printing import Item, Limit, Printer

PICTURES_FAILED, SERVER_FAILED, REJECTED, INTERRUPTED, OUTPUT_CLOSED = 1, 3, 4, 130, 141
OPEN_RETRY_S = 1.0  # short, so that a mistyped address is reported soon


def _parse_limit(ctx: click.Context, param: click.Parameter, text: str | None) -> Limit | None:
    """The value of --reject-below. Raises click.UsageError."""
    if text is None:
        return None
    if text == "auto":
        return "auto"
    try:
        probability = float(text)
    except ValueError:
        probability = 0.0
    if not 0 < probability <= 1:  # NaN too
        raise click.UsageError(f"--reject-below: expected above 0 and at most 1, or auto, found {text!r}")
    return probability


@click.command()
@click.argument("paths", metavar="PATH...", nargs=-1, required=True)
@click.option(
    "--model",
    help="Name of the model on the server, needed if its models have different labels."
    "  [default: the best transformer there]",
)
@click.option(
    "--top", type=click.IntRange(1), metavar="K", help="Also print the K most probable labels.  [default: none]"
)
@click.option("--split", is_flag=True, help="Read each separate shape, left to right.  [default: off]")
@click.option(
    "--reject-below",
    metavar="P|auto",
    callback=_parse_limit,
    help="Reject answers with a probability below P; auto: pictures of none of the labels.  [default: none]",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a line.  [default: off]")
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV with a header.  [default: off]")
@click.option("--show", is_flag=True, help="Also print what the model sees.  [default: off]")
@click.option(
    "--labels",
    type=FILE,
    help="An idx file with the labels of an idx file of images; prints the accuracy.  [default: none]",
)
@click.option(
    "--batch-size", type=click.IntRange(1), default=DEFAULTS.batch_size, show_default=True, help="Images in a request."
)
@click.option(
    "--concurrency",
    type=click.IntRange(1, 64),
    default=DEFAULTS.concurrency,
    show_default=True,
    help="Requests at a time.",
)
@connection_options()
def infer(
    paths: tuple[str, ...],
    model: str | None,
    top: int | None,
    split: bool,
    reject_below: Limit | None,
    as_json: bool,
    as_csv: bool,
    show: bool,
    labels: str | None,
    **server: Any,
) -> None:
    """Ask the server what PATH... shows: drawings, scans or photos of a digit, or what else its model classifies.

    A digit may be dark on light or light on dark. A model of photos sees the middle of a picture. A PATH is an image, a
    folder of images, a quoted pattern, an idx file as of MNIST, or - for standard input. Probabilities are calibrated
    if the model has a temperature. --reject-below makes the exit code 4 for rejections.
    """
    if as_json + as_csv + show > 1:
        raise click.UsageError("expected at most one of --json, --csv and --show")
    if split and labels:
        raise click.UsageError("expected at most one of --split and --labels")
    options = parse_options(open_retry_s=OPEN_RETRY_S, **server)
    from clients.printing import Printer

    form = "json" if as_json else "csv" if as_csv else "picture" if show else "text"
    sys.exit(_run(paths, labels, options, model, partial(Printer, form, top, split, reject_below)))


def _run(
    paths: tuple[str, ...],
    labels: str | None,
    options: Options,
    model: str | None,
    make_printer: Callable[[], Printer],
) -> int:
    """Prints all answers and returns the exit code."""
    from clients.classifier import Classifier
    from clients.images.picture_source import Pictures

    warnings.filterwarnings("ignore", module="PIL")  # serious faults are errors
    try:
        truths = None if labels is None else _read_labels(paths, labels)
        with closing(make_printer()) as printer:
            source = Pictures(paths, printer.print_failure, printer.print_note)
            printer.expect(source.count)
            pictures = iter(source)
            first = next(pictures, None)
            if first is not None:
                with Classifier(options, model) as classifier:
                    _check_labels(labels, truths or [], classifier.model)
                    _check_split(printer.split, classifier.model)
                    _check_rejection(printer.reject_below, classifier.model)
                    _classify_and_print(classifier, chain([first], pictures), truths, printer)
    except ClientError as error:
        click.echo(f"Error: {in_words(error)}", err=True)
        return PICTURES_FAILED if isinstance(error, InvalidImage) else SERVER_FAILED
    except KeyboardInterrupt:
        return INTERRUPTED
    except OSError as error:  # of standard output: all other errors are ClientErrors
        if error.errno == errno.EPIPE:
            return OUTPUT_CLOSED
        raise click.ClickException(in_words(error)) from error
    return PICTURES_FAILED if printer.failures else REJECTED if printer.rejected else 0


def _read_labels(paths: tuple[str, ...], labels: str) -> list[int]:
    """The index of every label. Raises UsageError unless `paths` is a single idx file with as many images."""
    from clients.images.decode import IdxFile
    from common.idx import is_idx

    if len(paths) != 1 or not os.path.isfile(paths[0]) or not is_idx(paths[0]):  # noqa: PTH113
        raise click.UsageError("--labels: expected PATH to be one idx file of images")
    try:
        with IdxFile(paths[0], dimensions=2) as images, IdxFile(labels, dimensions=0) as indices:
            expected, truths = images.count, [int(index) for index in indices]
    except InvalidImage as error:
        raise click.UsageError(f"--labels: {error}") from error
    if len(truths) != expected:
        raise click.UsageError(f"--labels {labels}: expected {counted(expected, 'label')}, found {len(truths)}")
    return truths


def _check_labels(labels: str | None, truths: list[int], model: ServedModel) -> None:
    classes = len(model.labels)
    for number, label in enumerate(truths):
        if label >= classes:
            raise click.UsageError(
                f"--labels {labels}: expected labels from 0 to {classes - 1}, as model {model.name!r} has {classes} "
                f"classes, found {label} in item {number}"
            )


def _check_split(split: bool, model: ServedModel) -> None:
    if split and model.preprocessing == "photo":
        raise click.UsageError(f"--split: expected a model of drawings, found {model.name!r}, a model of photos")


def _check_rejection(limit: Limit | None, model: ServedModel) -> None:
    if limit == "auto" and model.evidence_limit is None:
        advice = "train with --hold-out N, which fits it, and export again, or give a probability, such as 0.5"
        raise click.UsageError(
            f"--reject-below auto: expected a model with a fitted threshold, found {model.name!r} without; "
            + (advice if model.framing is None else "one from elsewhere takes a probability, such as 0.5")
        )


def _classify_and_print(
    classifier: Classifier, pictures: Iterator[Picture], truths: list[int] | None, printer: Printer
) -> None:
    """Prints an answer for each shape of each picture, and the accuracy if `truths` has the right labels' indices."""
    model = classifier.model
    printer.print_header(len(model.labels))
    correct, answered = 0, 0
    unanswered: deque[tuple[Item, int | None]] = deque()
    for prediction in classifier.stream(_inputs(pictures, truths, model, printer, unanswered)):
        item, truth = unanswered.popleft()
        rejected = printer.print_answer(item, prediction, model)
        answered += not rejected
        correct += not rejected and prediction.index == truth
    if truths is not None:
        printer.print_accuracy(correct, answered, len(truths))


def _inputs(
    pictures: Iterator[Picture],
    truths: list[int] | None,
    model: ServedModel,
    printer: Printer,
    unanswered: deque[tuple[Item, int | None]],
) -> Iterator[NDArray[np.uint8]]:
    """Yields the pictures' inputs, uint8 (C, H, W). Appends an item and its truth to `unanswered` for each input."""
    from clients.printing import Item

    for picture, truth in zip(pictures, truths or repeat(None), strict=False):
        try:
            inputs = picture.as_inputs(model, printer.split)
        except InvalidImage as error:
            printer.print_failure(picture.name, str(error))
            continue
        for note in inputs.notes:
            printer.print_note(picture.name, note)
        if inputs.shapes > 1 and not printer.split:
            note = f"{inputs.shapes} separate shapes, read as one digit; --split reads each"
            printer.print_note(picture.name, note)
        for number, image in enumerate(inputs.images, 1):
            unanswered.append((Item(picture.name, image, number, inputs.shapes, inputs.suits), truth))
            yield image


if __name__ == "__main__":
    infer()
