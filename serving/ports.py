"""Ports of this machine: which are free, which are taken, what answers there."""

from __future__ import annotations

import errno
import os
import socket
from contextlib import ExitStack, suppress

from serving.control import DIRECT

TAKEN = (
    f"expected a free port, found {os.strerror(errno.EADDRINUSE)}; stop what listens there, or give --http-port,"
    " --grpc-port and --metrics-port"
)


def free_ports(count: int) -> list[int]:
    """Different ports of loopback at which nothing listens. Another program may take them before the caller does."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def is_taken(url: str) -> bool:
    """Whether something listens at HOST:PORT."""
    host, _, port = url.rpartition(":")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        socket.create_server((host.strip("[]"), int(port)), family=family).close()
    except OSError as error:
        return error.errno == errno.EADDRINUSE  # the server itself tells of other errors
    return False


def answers(url: str, path: str = "", timeout_s: float = 2.0) -> bool:
    """Whether HOST:PORT answers this path without an HTTP error."""
    with suppress(OSError), DIRECT.open(f"http://{url}/{path}", timeout=timeout_s):  # HTTP errors are OSError too
        return True
    return False
