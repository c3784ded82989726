"""The application behind waitress: a bounded number of threads and connections, and no answer that is not JSON.

What is no HTTP, or too large, waitress refuses before the application sees it; those answers are made here.
"""

import json
import logging
import socket
from typing import Any

from flask import Flask
from waitress.channel import HTTPChannel
from waitress.parser import HTTPRequestParser
from waitress.server import create_server
from waitress.task import ErrorTask
from waitress.utilities import BadRequest

from clients.web.guards import HEADERS
from clients.web.pages import BODY_BYTES

THREADS = 4  # answer; every connection may have one request more that waits
CONNECTIONS = 100
IDLE_S = 30
HEADER_BYTES = 32_768


class CannotListen(Exception):
    """The address is taken, forbidden or none of this machine's; the message is one line that names it."""


class _Refusal(ErrorTask):  # type: ignore[misc]  # waitress has no types
    """waitress's own refusals in the form of the application's."""

    def execute(self) -> None:
        error = self.request.error
        body = json.dumps({"error": " ".join(f"{error.reason}: {error.body}".split())}).encode() + b"\n"
        self.status = f"{error.code} {error.reason}"
        self.response_headers.extend([*HEADERS.items(), ("Content-Type", "application/json")])
        self.set_close_on_finish()
        self.content_length = len(body)
        self.write(body)


class _Parser(HTTPRequestParser):  # type: ignore[misc]
    """waitress's parser, which lets through what int() and urlsplit() raise on a number or address that is none."""

    def received(self, data: bytes) -> int:
        try:
            return int(super().received(data))
        except ValueError as error:
            self.error = BadRequest(str(error))
            self.completed = True
            return len(data)


class _Channel(HTTPChannel):  # type: ignore[misc]
    error_task_class = _Refusal
    parser_class = _Parser


def open_server(app: Flask, host: str, port: int) -> Any:
    """A waitress server that listens on `host` (its first address) and `port` (0: a free one); `run` it.

    Raises CannotListen.
    """
    logging.getLogger("waitress.queue").setLevel(logging.ERROR)  # that requests wait is no news
    server = create_server(
        app,
        sockets=[_listen(host, port)],
        threads=THREADS,
        connection_limit=CONNECTIONS,
        channel_timeout=IDLE_S,
        max_request_header_size=HEADER_BYTES,
        max_request_body_size=BODY_BYTES + 1,  # the first size that is refused
        log_socket_errors=False,  # clients come and go
        ident=None,
    )
    server.channel_class = _Channel
    return server


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address, family=family, backlog=CONNECTIONS)
    except (OSError, UnicodeError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise CannotListen(f"cannot listen on {host!r}, port {port}: {reason}; see --host and --port") from error


def address_of(server: Any) -> str:
    """HOST:PORT of what `open_server` returned, as it stands in a URL; loopback where it listens everywhere."""
    host, port = server.effective_host, server.effective_port
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
