"""`vitbn web`: serves the page. It also starts without a Triton server, and asks the server once it is there."""

import signal
import sys
from typing import Any
from urllib.parse import urlsplit

import click

import vitbn_packages  # noqa: F401  # says in one line which package is missing
from clients.connection_options import connection_options, parse_options
from common.addresses import is_loopback, join_address


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on, 0.0.0.0 for all.")
@click.option("--port", type=click.IntRange(0, 65535), default=8080, show_default=True, help="0 takes a free port.")
@click.option(
    "--behind-proxy",
    metavar="NAME",
    help="The proxy's name for browsers. It alone must reach HOST: its X-Forwarded-For is believed.  [default: none]",
)
@click.option("--model", help="The model selected at first.  [default: the best transformer there]")
@connection_options(timeout_s=5.0)  # the browser waits longer, and retries
def web(host: str, port: int, behind_proxy: str | None, model: str | None, **options: Any) -> None:
    """Serve a page to draw a digit on or show a picture. Everyone who reaches HOST may use it: there is no password."""
    from clients.errors import CannotListen, ClientError
    from clients.web.guards import RateLimit
    from clients.web.routes import create_app, open_server
    from clients.web.triton_requests import Triton

    if behind_proxy is not None and urlsplit(f"//{behind_proxy}").hostname != "".join(behind_proxy.lower().split()):
        raise click.UsageError(f"--behind-proxy: expected a name without scheme and port, found {behind_proxy!r}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # else the first process of a container ignores SIGTERM
    triton = Triton(parse_options(retry_s=0, **options), model)
    try:
        app = create_app(triton, RateLimit(), behind_proxy or host)
        server = open_server(app, host, port, behind_proxy is not None)
    except CannotListen as error:
        raise click.ClickException(str(error)) from error
    click.echo(f"Draw at http://{join_address(server.effective_host, server.effective_port)} (Ctrl-C ends)")
    if behind_proxy is None and not is_loopback(server.effective_host):
        click.echo(
            "Others reach this page: only a proxy keeps slow senders from filling it (vitbn proxy --page)", err=True
        )
    try:
        triton.models()
    except ClientError as error:
        click.echo(f"The page has no answers yet: {error}", err=True)
    server.run()
    triton.close()


if __name__ == "__main__":
    web()
