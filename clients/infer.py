"""The command line: pictures in, labels with probabilities out, in order and flat memory.

Exit codes: 0 all answered; 1 images failed, named on standard error; 2 usage; 3 server failed; 4 answers rejected;
130 interrupted; 141 output closed by its reader.
"""

import errno
import os
import sys
import warnings
from typing import Any

import click

from clients.server.endpoint import BATCH_SIZE, CONCURRENCY, TIMEOUT_S, Tls, check_header, check_seconds

INTERRUPTED, UNREAD = 130, 141
OPEN_RETRY_S = 1.0  # reports a mistyped address soon


def _seconds(context: click.Context, parameter: click.Parameter, value: float) -> float:
    try:
        check_seconds("the time", value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error
    return value


def _share(context: click.Context, parameter: click.Parameter, value: float | None) -> float | None:
    if value is not None and not 0 < value <= 1:  # NaN too
        raise click.BadParameter(f"expected a probability above 0 and at most 1, found {value!r}")
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
@click.option(
    "--url",
    metavar="HOST:PORT",
    help="The server's address; further addresses, after commas, replace an absent server."
    "  [default: 127.0.0.1, Triton's port]",
)
@click.option("--protocol", type=click.Choice(["http", "grpc"]), default="http", show_default=True)
@click.option("--top", type=click.IntRange(1), metavar="K", help="Also print the K most probable labels.")
@click.option("--split", is_flag=True, help="Read each separate shape, left to right.")
@click.option(
    "--reject-below", type=float, metavar="P", callback=_share, help="Reject answers with a probability below P."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a line.")
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV with a header.")
@click.option("--show", is_flag=True, help="Also print what the model sees, in blocks.")
@click.option("--labels", type=_FILE, help="An idx file with the labels of an idx file of images; prints the accuracy.")
@click.option(
    "--batch-size", type=click.IntRange(1), default=BATCH_SIZE, show_default=True, help="Images in a request."
)
@click.option(
    "--concurrency", type=click.IntRange(1, 64), default=CONCURRENCY, show_default=True, help="Requests at a time."
)
@click.option("--shared-memory", is_flag=True, help="Pass images to a server on this machine through memory.")
@click.option(
    "--timeout", type=float, default=TIMEOUT_S, show_default=True, callback=_seconds, help="Seconds a request."
)
@click.option("--ssl", is_flag=True, help="Encrypt, and verify the server by the system's authorities.")
@click.option("--ssl-ca", type=_FILE, help="Encrypt, and verify the server by the authorities in this PEM file.")
@click.option("--ssl-cert", type=_FILE, help="A PEM file with this client's certificate.")
@click.option("--ssl-key", type=_FILE, help="A PEM file with that certificate's private key.")
@click.option("--header", multiple=True, metavar="NAME:VALUE", callback=_headers, help="Sent with every request.")
def infer(
    paths: tuple[str, ...],
    model: str | None,
    url: str | None,
    protocol: str,
    top: int | None,
    split: bool,
    reject_below: float | None,
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
    """Ask the server what PATH... shows: drawings, scans or photos of a digit, or what else its model classifies.

    A digit may be dark on light or light on dark. A model of photos sees the middle of a picture. A PATH is an image, a
    folder of images, a quoted pattern, an idx file as of MNIST, or - for standard input. Probabilities are calibrated
    if the model has a temperature. --reject-below makes the exit code 4 for rejections.
    """
    if as_json + as_csv + show > 1:
        raise click.UsageError("expected at most one of --json, --csv and --show")
    if split and labels:
        raise click.UsageError("expected at most one of --split and --labels")
    server: dict[str, Any] = {
        "url": url,
        "model": model,
        "protocol": protocol,
        "timeout_s": timeout,
        "open_retry_s": OPEN_RETRY_S,
        "batch_size": batch_size,
        "concurrency": concurrency,
        "shared_memory": shared_memory,
        "tls": _tls(ssl, ssl_ca, ssl_cert, ssl_key),
        "headers": header,
    }
    form = "json" if as_json else "csv" if as_csv else "picture" if show else "text"
    sys.exit(_answer(paths, labels, server, form, top, split, reject_below))


def _tls(ssl: bool, ca_file: str | None, certificate_file: str | None, key_file: str | None) -> Tls | None:
    try:
        return Tls(ca_file, certificate_file, key_file) if ssl or ca_file or certificate_file or key_file else None
    except ValueError as error:
        raise click.UsageError(str(error)) from error


def _answer(
    paths: tuple[str, ...],
    labels: str | None,
    server: dict[str, Any],
    form: str,
    top: int | None,
    split: bool,
    reject_below: float | None,
) -> int:
    from clients.answering import LabelsMismatch, answer_paths
    from clients.printing import Printer

    warnings.filterwarnings("ignore", module="PIL")  # serious faults are errors
    try:
        return answer_paths(paths, labels, server, Printer(form, top, split, reject_below))
    except LabelsMismatch as error:
        raise click.UsageError(f"--labels: {error}") from error
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    except KeyboardInterrupt:
        return INTERRUPTED
    except OSError as error:  # of standard output; all other errors are ClientError
        if error.errno == errno.EPIPE:
            return UNREAD
        raise click.ClickException(f"{_output()}: {error.strerror}") from error


def _output() -> str:
    from clients.terminal import printable

    try:
        path = os.readlink("/proc/self/fd/1")  # noqa: PTH115 (of a pipe it is no path)
    except OSError:
        path = ""
    return f"standard output ({printable(path)})" if path.startswith("/") else "standard output"


if __name__ == "__main__":
    infer()
