"""Ports of this machine: finds free ports, checks whether a port is taken and whether a server answers there."""

from __future__ import annotations

import errno
import os
import socket
from contextlib import ExitStack, suppress

from common.addresses import split_address
from serving.control import DIRECT

TAKEN = (
    f"expected a free port, found {os.strerror(errno.EADDRINUSE)}; stop what listens there, or give --http-port,"
    " --grpc-port and --metrics-port"
)


def free_ports(count: int) -> list[int]:
    """Different free ports of loopback. Another program may take them before the caller does."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for unbound in sockets:
            unbound.bind(("127.0.0.1", 0))
        return [bound.getsockname()[1] for bound in sockets]


def is_taken(url: str) -> bool:
    """Whether a program listens at HOST:PORT."""
    host, port, family = split_address(url)
    try:
        socket.create_server((host, port), family=family).close()
    except OSError as error:
        return error.errno == errno.EADDRINUSE  # the server reports other errors at its start
    return False


def answers(url: str, path: str = "", timeout_s: float = 2.0) -> bool:
    """Whether a GET of this path at HOST:PORT succeeds."""
    with suppress(OSError), DIRECT.open(f"http://{url}/{path}", timeout=timeout_s):  # HTTP errors are OSErrors, too
        return True
    return False
