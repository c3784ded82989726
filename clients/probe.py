"""`vitbn probe`: asks every served version of a server its stored sample. Out: a JSON object a probe, an exit code."""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path

import click

from clients.probing.health_endpoint import Health
from clients.probing.server_probe import TIMEOUT_S, probe_server
from common.address_option import Address
from common.finite_range import FiniteRange
from common.given_path import GivenPath
from common.headers import parse_headers


def _open_health(address: str | None, every_s: float | None, timeout_s: float) -> Health | None:
    """The endpoint of --listen. Its verdict is stale after two missed probes."""
    if address is None:
        return None
    if every_s is None:
        raise click.UsageError("--listen needs --every")
    try:
        return Health(address, 2 * (every_s + timeout_s))
    except OSError as error:
        raise click.ClickException(f"--listen {address}: {error.strerror}") from error


@click.command()
@click.option("--url", type=Address(), default="127.0.0.1:8000", show_default=True, help="Of HTTP.")
@click.option(
    "--model", "models", multiple=True, help="Ask only this model, which must be served; repeatable.  [default: all]"
)
@click.option(
    "--repository",
    "repositories",
    type=GivenPath(path_type=Path),
    multiple=True,
    help="Compare with the samples in this folder; repeatable.  [default: with those in config.pbtxt]",
)
@click.option("--timeout", type=FiniteRange(0.05, 60), default=TIMEOUT_S, show_default=True, help="Seconds.")
@click.option("--header", multiple=True, metavar="NAME:VALUE", help="For a guarded server.  [default: none]")
@click.option(
    "--every",
    type=FiniteRange(0.1),
    metavar="SECONDS",
    help="Repeat until interrupted, one line per probe.  [default: once]",
)
@click.option(
    "--listen",
    type=Address(),
    help="With --every: answer a proxy's health checks.  [default: none]",
)
def probe(
    models: tuple[str, ...],
    repositories: tuple[Path, ...],
    url: str,
    timeout: float,
    header: tuple[str, ...],
    every: float | None,
    listen: str | None,
) -> None:
    """Ask every served version its sample; print JSON; exit code 1 for a wrong answer or none."""
    if every is not None:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # else the first process of a container ignores SIGTERM
    try:
        headers = parse_headers(header)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    health = _open_health(listen, every, timeout)
    while True:
        result = probe_server(url, models, headers, timeout, repositories)
        if health:
            health.update(result)
        click.echo(result.to_json())
        if every is None:
            sys.exit(0 if result.ok else 1)
        time.sleep(every)


if __name__ == "__main__":
    probe()
