"""Serves the application by waitress, with limits for threads, connections and sizes.

waitress does not end the connections of slow senders; the proxy does (`vitbn proxy --page`).
"""

import logging
import socket
from typing import Any

from flask import Flask
from waitress.server import create_server

from clients.errors import CannotListen
from common.files import reason

THREADS, CONNECTIONS = 4, 600
IDLE_S = 30  # a connection that has sent no byte for so long is closed
HEADER_BYTES, LARGEST_BODY = 32_768, 50_000_000  # waitress refuses larger bodies; the application's own limit is lower
BACKLOG = 1024  # connections that wait to be accepted


def open_server(app: Flask, host: str, port: int, behind_proxy: bool = False) -> Any:
    """Listens on the first address of `host`, at `port` (0: a free port). Raises CannotListen.

    behind_proxy: the client's address is read from the proxy's header X-Forwarded-For.
    """
    logging.getLogger("waitress.queue").setLevel(logging.ERROR)  # else it warns of waiting requests, which are normal
    trusted: dict[str, Any] = {"trusted_proxy": "*", "trusted_proxy_headers": {"x-forwarded-for"}}
    return create_server(
        app,
        sockets=[_listen(host, port)],
        threads=THREADS,
        backlog=BACKLOG,
        connection_limit=CONNECTIONS,  # further connections wait to be accepted
        channel_timeout=IDLE_S,
        cleanup_interval=5,  # seconds
        asyncore_use_poll=True,  # select() ends at 1,024 descriptors
        max_request_header_size=HEADER_BYTES,
        max_request_body_size=LARGEST_BODY,
        log_socket_errors=False,  # else it logs clients that disconnect
        ident=None,
        **(trusted if behind_proxy else {}),
    )


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address, family=family, backlog=BACKLOG)
    except (OSError, UnicodeError) as error:
        raise CannotListen(f"cannot listen on {host!r}, port {port}: {reason(error)}; see --host and --port") from error
