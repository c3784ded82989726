"""`vitbn proxy SERVER... --output DIR`: writes Envoy's configuration after Envoy itself has checked it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click

from common.given_path import GivenPath
from serving.proxy.envoy_config import check, write
from serving.proxy.settings import (
    ADMIN_PORT,
    IN_FLIGHT,
    PAGE_PORT,
    Backend,
    Settings,
    TlsFiles,
    parse_backend,
    read_keys,
)
from vitbn_packages import in_words

PORT, FILE = click.IntRange(1, 65535), click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command()
@click.argument("servers", nargs=-1, required=True, metavar="HOST[:HTTP[:GRPC[:HEALTH]]]...")
@click.option("--output", type=GivenPath(file_okay=False, path_type=Path), required=True, help="Folder for the files.")
@click.option(
    "--seen-as",
    type=GivenPath(path_type=str),
    metavar="FOLDER",
    help="Where Envoy will see that folder, as in a container.  [default: --output]",
)
@click.option(
    "--drain",
    multiple=True,
    metavar="HOST[:HTTP]",
    help="A server that gets no new request; repeatable.  [default: none]",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="The address for clients.")
@click.option(
    "--port",
    "ports",
    type=PORT,
    multiple=True,
    default=(8000, 8001),
    show_default=True,
    help="For HTTP and gRPC alike; repeatable.",
)
@click.option(
    "--admin-port", type=PORT, default=ADMIN_PORT, show_default=True, help="Envoy's administration, on loopback."
)
@click.option(
    "--metrics-port", type=PORT, help="Statistics at --host for Prometheus on another machine.  [default: none]"
)
@click.option(
    "--in-flight",
    type=click.IntRange(1, 10_000),
    default=IN_FLIGHT,
    show_default=True,
    help="Requests at once to each server; the rest is refused.",
)
@click.option("--tls", type=FILE, nargs=2, metavar="CERTIFICATE KEY", help="PEM files.  [default: no TLS]")
@click.option("--keys", type=FILE, help="A file with lines CLIENT KEY.  [default: anybody may ask]")
@click.option("--page", metavar="HOST[:PORT]", help="Where `vitbn web --behind-proxy` listens.  [default: no page]")
def proxy(
    servers: tuple[str, ...],
    output: Path,
    seen_as: str | None,
    drain: tuple[str, ...],
    host: str,
    ports: tuple[int, ...],
    admin_port: int,
    metrics_port: int | None,
    in_flight: int,
    tls: tuple[Path, Path] | None,
    keys: Path | None,
    page: str | None,
) -> None:
    """Write Envoy's configuration for these servers; run it with: envoy -c DIR/envoy.yaml."""
    try:
        backends = drained([parse_backend(server) for server in servers], [parse_backend(server) for server in drain])
        clients = read_keys(keys) if keys else {}
        tls_files = TlsFiles(*tls) if tls else None
        page_server = parse_backend(page, PAGE_PORT) if page is not None else None
        settings = Settings(backends, host, ports, admin_port, in_flight, tls_files, clients, metrics_port, page_server)
        check(settings)
        write(settings, output, seen_as)
    except (ValueError, OSError) as error:
        raise click.ClickException(in_words(error)) from error
    click.echo(f"Wrote {output / 'envoy.yaml'}")


def drained(backends: list[Backend], drain: list[Backend]) -> list[Backend]:
    """Marks the backends that are in `drain`. Raises ValueError for an unknown server in `drain`."""
    draining = {(backend.host, backend.http) for backend in drain}
    if unknown := draining - {(backend.host, backend.http) for backend in backends}:
        host, port = min(unknown)
        raise ValueError(f"expected one of the servers to drain, found {host}:{port}")
    return [replace(backend, draining=(backend.host, backend.http) in draining) for backend in backends]


if __name__ == "__main__":
    proxy()
