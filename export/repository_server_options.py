"""Options of the commands on a model repository: where it is, which servers load it, with which key."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from common.address_option import Address
from common.given_path import GivenPath

Command = TypeVar("Command", bound=Callable[..., Any])


def _headers(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    from common.headers import parse_headers

    try:
        return parse_headers(values)
    except ValueError as error:
        raise click.BadParameter(str(error).removeprefix("header: ")) from error


def _key(context: click.Context, parameter: click.Parameter, value: Path | None) -> str | None:
    """The key in a file."""
    from serving.control_key import KeyFailed, read

    try:
        return read(value) if value else None
    except (KeyFailed, OSError) as error:
        raise click.BadParameter(str(error)) from error


repository_option = click.option(
    "--repository", type=GivenPath(path_type=Path), default=Path("triton_repo"), show_default=True
)


def server_options(command: Command) -> Command:
    """Passes `repository`, `servers`, `header` and `key`."""
    header = click.option("--header", multiple=True, metavar="NAME:VALUE", callback=_headers, help="For the server.")
    key = click.option(
        "--key-file",
        "key",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        callback=_key,
        help="Key of servers of another user or machine.  [default: this user's own key for the port]",
    )
    server = click.option(
        "--server",
        "servers",
        type=Address(),
        multiple=True,
        default=("127.0.0.1:8000",),
        show_default=True,
        help="Of HTTP; repeatable: servers load in turn.",
    )
    return repository_option(server(header(key(command))))


def loading_options(command: Command) -> Command:
    """Passes what `server_options` passes, and `grpc`."""
    default = "8001 on its host if --server has port 8000, else HTTP, which holds up other requests"
    grpc = click.option(
        "--grpc", type=Address(), multiple=True, help=f"For loads over gRPC, one a server.  [default: {default}]"
    )
    return server_options(grpc(command))
