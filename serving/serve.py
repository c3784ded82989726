"""`vitbn serve`: a plain server, a supervised server, or several behind the proxy.

Runs until a signal; the exit code is the server's.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from serving.launcher import LauncherError, launch


def _supervise(own: Mapping[str, Any], arguments: Sequence[str]) -> int:
    from serving.supervisor import METRICS_PORT, supervise

    port = METRICS_PORT if own["supervisor_port"] is None else own["supervisor_port"]
    if not own["servers"]:
        return supervise(arguments, port or None, own["health_port"] or None)
    from serving.fleet.fleet import Access, serve_fleet
    from serving.proxy.settings import TlsFiles, read_keys

    keys = read_keys(own["keys"]) if own["keys"] else {}
    access = Access(keys, TlsFiles(*own["tls"]) if own["tls"] else None)
    return serve_fleet(own["servers"], arguments, own["first_port"], port, access)


# --help is Triton's
@click.command(context_settings={"ignore_unknown_options": True, "help_option_names": []})
@click.option("--supervised", is_flag=True)
@click.option("--supervisor-port", type=click.IntRange(0, 65535))
@click.option("--health-port", type=click.IntRange(0, 65535))
@click.option("--servers", type=click.IntRange(2, 64))
@click.option("--first-port", type=click.IntRange(1024, 64000), default=8100)
@click.option("--keys", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--tls", type=click.Path(path_type=Path), nargs=2)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def serve(arguments: tuple[str, ...], **own: Any) -> None:
    """Run tritonserver; every other argument is Triton's own."""
    try:
        if own["supervised"] or own["servers"]:
            sys.exit(_supervise(own, arguments))
        launch(arguments)
    except (LauncherError, ValueError) as error:
        raise click.ClickException(str(error)) from error


if __name__ == "__main__":
    serve()
