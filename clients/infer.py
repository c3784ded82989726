"""The command line: pictures in, what they show and how probable that is out.

    python clients/infer.py digit.png
    digit.png: 3 (99.5 %)

Answers come in the order of the images, and memory does not grow with their number. Exit codes: 0 every image was
answered; 1 some could not be, each named in a line on standard error; 2 usage; 3 the server failed; and as for any
program 130 interrupted, 141 nobody reads the output.
numpy, Pillow and tritonclient are imported where they are used, so that --help and usage errors come at once.
"""

import errno
import sys
import warnings
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any

import click

from clients.endpoint import BATCH_SIZE, CONCURRENCY, TIMEOUT_S, Tls, check_header, check_seconds

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from clients.classifier import Classifier
    from clients.idx import IdxFile
    from clients.pictures import Picture
    from clients.printing import Form
    from clients.terminal import Terminal

FAILED, SERVER, INTERRUPTED, UNREAD = 1, 3, 130, 141


def _seconds(context: click.Context, parameter: click.Parameter, value: float) -> float:
    try:
        check_seconds("the time", value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error
    return value


def _headers(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    headers = {}
    for value in values:
        name, colon, content = (part.strip() for part in value.partition(":"))
        if not colon:
            raise click.BadParameter(f"expected NAME:VALUE, found {value!r}")
        try:
            check_header(name, content)
        except ValueError as error:
            raise click.BadParameter(str(error)) from error
        headers[name] = content
    return headers


_FILE = click.Path(exists=True, dir_okay=False)


@click.command()
@click.argument("paths", metavar="PATH...", nargs=-1, required=True)
@click.option("--model", help="Name of the model on the server.  [default: the best transformer there]")
@click.option("--url", metavar="HOST:PORT", help="Where the server is.  [default: 127.0.0.1, Triton's port]")
@click.option("--protocol", type=click.Choice(["http", "grpc"]), default="http", show_default=True)
@click.option("--top", type=click.IntRange(1), metavar="K", help="Also print the K most probable labels.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a line.")
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV with a header.")
@click.option("--show", is_flag=True, help="Also print what the model sees, in blocks.")
@click.option("--labels", type=_FILE, help="An idx file of labels for one of images; prints the accuracy last.")
@click.option(
    "--batch-size", type=click.IntRange(1), default=BATCH_SIZE, show_default=True, help="Images in a request."
)
@click.option(
    "--concurrency", type=click.IntRange(1, 64), default=CONCURRENCY, show_default=True, help="Requests at a time."
)
@click.option("--shared-memory", is_flag=True, help="Hand the images to a server on this machine through memory.")
@click.option(
    "--timeout", type=float, default=TIMEOUT_S, show_default=True, callback=_seconds, help="Seconds a request."
)
@click.option("--ssl", is_flag=True, help="Encrypt, and verify the server by the system's authorities.")
@click.option("--ssl-ca", type=_FILE, help="Encrypt, and verify the server by the authorities in this PEM file.")
@click.option("--ssl-cert", type=_FILE, help="A PEM file with the certificate that the server wants to see.")
@click.option("--ssl-key", type=_FILE, help="A PEM file with that certificate's private key.")
@click.option("--header", multiple=True, metavar="NAME:VALUE", callback=_headers, help="To send with every request.")
def infer(
    paths: tuple[str, ...],
    model: str | None,
    url: str | None,
    protocol: str,
    top: int | None,
    as_json: bool,
    as_csv: bool,
    show: bool,
    labels: str | None,
    batch_size: int,
    concurrency: int,
    shared_memory: bool,
    timeout: float,
    ssl: bool,
    ssl_ca: str | None,
    ssl_cert: str | None,
    ssl_key: str | None,
    header: dict[str, str],
) -> None:
    """Ask the server what PATH... shows: drawings, scans or photos of a digit, or whatever its model tells apart.

    A digit may be dark on light or light on dark. A model of photos sees a picture's middle, in its own size.
    A PATH is an image, a folder of images, a quoted pattern, an idx file as of MNIST, or - for standard input.
    """
    if as_json + as_csv + show > 1:
        raise click.UsageError("expected at most one of --json, --csv and --show")
    warnings.filterwarnings("ignore", module="PIL")  # what matters about a picture is an error
    form: Form = "json" if as_json else "csv" if as_csv else "picture" if show else "text"
    try:
        tls = Tls(ssl_ca, ssl_cert, ssl_key) if ssl or ssl_ca or ssl_cert or ssl_key else None
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    options = {
        "url": url,
        "model": model,
        "protocol": protocol,
        "timeout_s": timeout,
        "batch_size": batch_size,
        "concurrency": concurrency,
        "shared_memory": shared_memory,
        "tls": tls,
        "headers": header,
    }
    try:
        code = _run(paths, labels, options, form, top)
    except KeyboardInterrupt:
        code = INTERRUPTED
    except OSError as error:  # of standard output, for all others are errors of the client
        if error.errno != errno.EPIPE:
            raise click.ClickException(f"standard output: {error.strerror}") from error
        code = UNREAD
    sys.exit(code)


def _run(paths: tuple[str, ...], labels: str | None, options: dict[str, Any], form: "Form", top: int | None) -> int:
    """Print the answers for all pictures; the exit code. No server is needed before there is a picture."""
    from clients.classifier import Classifier, ClientError, InvalidImage
    from clients.pictures import count_pictures, read_pictures
    from clients.printing import printable
    from clients.terminal import Terminal

    try:
        with ExitStack() as stack:
            truths = None if labels is None else stack.enter_context(_labels_for(paths, labels))
            terminal = stack.enter_context(Terminal(lambda: count_pictures(paths)))
            pictures = read_pictures(paths, terminal.failed, terminal.noted)
            first = next(pictures, None)
            if first is not None:
                classifier = stack.enter_context(Classifier(**options))
                _print_answers(classifier, chain([first], pictures), truths, terminal, form, top)
    except ClientError as error:
        click.echo(f"Error: {printable(str(error))}", err=True)
        return FAILED if isinstance(error, InvalidImage) else SERVER
    return FAILED if terminal.failures else 0


def _labels_for(paths: tuple[str, ...], labels: str) -> "IdxFile":
    """The file of labels, open, when it is whole and has one for each image of the one idx file."""
    from clients.decode import InvalidImage
    from clients.idx import IdxFile, is_idx

    if len(paths) != 1 or not is_idx(paths[0]):
        raise click.UsageError("--labels: expected PATH to be one idx file of images")
    try:
        with IdxFile(paths[0], dimensions=2) as images, IdxFile(labels, dimensions=0) as whole:
            expected, found = images.count, sum(1 for _ in whole)
        if found != expected:
            raise click.UsageError(f"--labels: expected {expected} labels in {labels}, found {found}")
        return IdxFile(labels, dimensions=0)
    except InvalidImage as error:
        raise click.UsageError(f"--labels: {error}") from error


def _print_answers(
    classifier: "Classifier",
    pictures: Iterator["Picture"],
    truths: "IdxFile | None",
    terminal: "Terminal",
    form: "Form",
    top: int | None,
) -> None:
    """Ask about all pictures, and print each answer as it comes; last the accuracy, where the labels are known."""
    from clients.decode import InvalidImage
    from clients.printing import csv_header, lines

    model = classifier.model
    waiting: deque[tuple[str, NDArray[np.uint8], int | None]] = deque()

    def inputs() -> Iterator["NDArray[np.uint8]"]:
        for picture, truth in zip(pictures, map(int, truths) if truths else repeat(None), strict=False):
            try:
                pixels = picture.as_input(model.image_shape, model.preprocessing)
            except InvalidImage as error:
                terminal.failed(picture.name, str(error))
                continue
            waiting.append((picture.name, pixels, truth))
            yield pixels

    if form == "csv":
        terminal.print(csv_header(top, len(model.labels)))
    correct = 0
    for prediction in classifier.stream(inputs()):
        name, pixels, truth = waiting.popleft()
        terminal.answered(lines(form, name, pixels, prediction, model.name, top))
        correct += prediction.index == truth
    if truths:
        share = f"accuracy: {100 * correct / truths.count:.2f} % ({correct} of {truths.count})"
        terminal.print(share, err=form in ("json", "csv"))


if __name__ == "__main__":
    infer()
