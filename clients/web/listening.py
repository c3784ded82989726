"""The application behind waitress, with bounded threads and connections."""

import logging
import socket
from typing import Any

from flask import Flask
from waitress.server import create_server

from clients.errors import CannotListen
from clients.web.channels import CONNECTIONS, Channel
from clients.web.pages import BODY_BYTES

THREADS = 4
IDLE_S = 30  # between two requests of a connection
HEADER_BYTES = 32_768
BACKLOG = 1024  # unaccepted connections


def open_server(app: Flask, host: str, port: int) -> Any:
    """Listens on the first address of `host` and `port` (0: a free port). Raises CannotListen."""
    logging.getLogger("waitress.queue").setLevel(logging.ERROR)  # waiting requests are normal
    server = create_server(
        app,
        sockets=[_listen(host, port)],
        threads=THREADS,
        backlog=BACKLOG,
        connection_limit=2 * CONNECTIONS,  # waitress stops accepting there; Channel stays below
        channel_timeout=IDLE_S,
        cleanup_interval=5,  # seconds
        asyncore_use_poll=True,  # select() ends at 1,024 descriptors
        max_request_header_size=HEADER_BYTES,
        max_request_body_size=BODY_BYTES + 1,  # waitress refuses from this size on
        log_socket_errors=False,  # clients come and go
        ident=None,
    )
    server.channel_class = Channel
    return server


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address, family=family, backlog=BACKLOG)
    except (OSError, UnicodeError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise CannotListen(f"cannot listen on {host!r}, port {port}: {reason}; see --host and --port") from error


def address_of(server: Any) -> str:
    """HOST:PORT for a URL; loopback for a server on all addresses."""
    host, port = server.effective_host, server.effective_port
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
