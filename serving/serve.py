"""`vitbn serve`: a plain server, a supervised server, or several behind the proxy."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import click

from serving.launcher import launch
from serving.proxy.vitbn_proxy_command import FILE
from serving.restricted_api import OPEN
from vitbn_packages import in_words, one_line_errors

MODES = {  # option -> the modes in which the option has an effect
    "supervisor_port": ("supervised", "servers"),
    "health_port": ("supervised",),
    "first_port": ("servers",),
    "keys": ("servers",),
    "tls": ("servers",),
}


def _supervise(options: Mapping[str, Any], arguments: Sequence[str]) -> int:
    from serving.supervisor import METRICS_PORT, supervise

    port = METRICS_PORT if options["supervisor_port"] is None else options["supervisor_port"]
    if not options["servers"]:
        return supervise(arguments, port or None, options["health_port"] or None)
    from serving.fleet import FIRST_PORT, serve_fleet
    from serving.proxy.settings import TlsFiles, read_keys

    keys = read_keys(options["keys"]) if options["keys"] else {}
    tls = TlsFiles(*options["tls"]) if options["tls"] else None
    return serve_fleet(options["servers"], arguments, options["first_port"] or FIRST_PORT, port, keys, tls)


@click.command(context_settings={"ignore_unknown_options": True})
@click.option("--supervised", is_flag=True, help="Probe the server and heal it.  [default: off]")
@click.option(
    "--servers", type=click.IntRange(2, 64), metavar="N", help="N supervised servers behind a proxy.  [default: one]"
)
@click.option(
    "--supervisor-port",
    type=click.IntRange(0, 65535),
    help="Metrics of the supervisor or of all servers, 0: none (not with --servers).  [default: 8003]",
)
@click.option("--health-port", type=click.IntRange(0, 65535), help="Answers a proxy's health checks.  [default: none]")
@click.option(
    "--first-port",
    type=click.IntRange(1024, 64000),
    help="With --servers: first of the servers' own ports.  [default: 8100]",
)
@click.option("--keys", type=FILE, help="With --servers: a file with lines CLIENT KEY.  [default: anybody may ask]")
@click.option(
    "--tls", type=FILE, nargs=2, metavar="CERTIFICATE KEY", help="With --servers: PEM files.  [default: no TLS]"
)
@click.option(
    OPEN,
    "opens",
    count=True,
    help="Any program and web page on this machine may load code; twice: beyond loopback too.  [default: with a key]",
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[TRITON'S OPTIONS]...")
@one_line_errors()
def serve(arguments: tuple[str, ...], opens: int, **options: Any) -> None:
    """Run tritonserver.

    All other options are Triton's, such as --model-repository triton_repo: tritonserver --help lists them.
    """
    _check(options)
    arguments += (OPEN,) * opens
    try:
        if options["supervised"] or options["servers"]:
            sys.exit(_supervise(options, arguments))
        launch(arguments)
    except ValueError as error:
        raise click.ClickException(in_words(error)) from error


def _check(options: Mapping[str, Any]) -> None:
    """Raises UsageError for an option without effect: an ignored --keys would let everybody use the server."""
    mode = "servers" if options["servers"] else "supervised" if options["supervised"] else None
    for name, modes in MODES.items():
        if options[name] is not None and mode not in modes:
            expected = " or ".join(f"--{allowed}" for allowed in modes)
            found = f"--{mode}" if mode else "a plain server"
            raise click.UsageError(f"--{name.replace('_', '-')}: expected {expected}, found {found}")
    if options["servers"] and options["supervisor_port"] == 0:
        raise click.UsageError("--supervisor-port: expected a port with --servers, found 0")


if __name__ == "__main__":
    serve()
