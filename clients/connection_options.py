"""The command-line options of a connection to a server, and their values as `Options`. Light to import."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any, TypeVar

import click

from clients.options import DEFAULTS, Options, Tls
from common.headers import parse_headers

Command = TypeVar("Command", bound=Callable[..., Any])

FILE = click.Path(exists=True, dir_okay=False)


def connection_options(timeout_s: float = DEFAULTS.timeout_s) -> Callable[[Command], Command]:
    """Decorates a command with --url, --protocol, --timeout, --ssl and its files, --header.

    The command passes their values to `parse_options` as keywords. `timeout_s`: the default of --timeout, in seconds.
    """
    options = (
        click.option(
            "--url",
            metavar="HOST:PORT",
            help="The server's address; further addresses, after commas, replace an absent server."
            "  [default: 127.0.0.1, Triton's port]",
        ),
        click.option("--protocol", type=click.Choice(["http", "grpc"]), default="http", show_default=True),
        click.option("--timeout", type=float, default=timeout_s, show_default=True, help="Seconds a request."),
        click.option(
            "--ssl", is_flag=True, help="Encrypt, and verify the server by the system's authorities.  [default: off]"
        ),
        click.option(
            "--ssl-ca",
            type=FILE,
            help="Encrypt, and verify the server by the authorities in this PEM file.  [default: none]",
        ),
        click.option("--ssl-cert", type=FILE, help="A PEM file with this client's certificate.  [default: none]"),
        click.option("--ssl-key", type=FILE, help="A PEM file with that certificate's private key.  [default: none]"),
        click.option("--header", multiple=True, metavar="NAME:VALUE", help="Sent with every request.  [default: none]"),
    )
    return lambda command: reduce(lambda decorated, option: option(decorated), reversed(options), command)


def parse_options(
    *,
    timeout: float,
    ssl: bool,
    ssl_ca: str | None,
    ssl_cert: str | None,
    ssl_key: str | None,
    header: tuple[str, ...],
    **others: Any,
) -> Options:
    """The values of `connection_options` -> Options. `others`: further fields of Options. Raises click.UsageError."""
    try:
        tls = Tls(ssl_ca, ssl_cert, ssl_key) if ssl or ssl_ca or ssl_cert or ssl_key else None
        return Options(timeout_s=timeout, tls=tls, headers=parse_headers(header), **others)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
