"""Ports of this machine: finds free ports, checks whether a port is taken and whether a server answers there."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from http.client import HTTPException

from common.addresses import split_address
from serving.model_control_client import DIRECT

ADVICE = "stop what listens there, or give --http-port, --grpc-port and --metrics-port"
# Triton calls each of these "already in use", and only after it has loaded all models.
UNUSABLE = (errno.EADDRINUSE, errno.EADDRNOTAVAIL, errno.EACCES)


def free_ports(count: int) -> list[int]:
    """Different free ports of loopback. Another program may take them before the caller does."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for unbound in sockets:
            unbound.bind(("127.0.0.1", 0))
        return [bound.getsockname()[1] for bound in sockets]


def taken(urls: Iterable[str]) -> str:
    """A line for the first HOST:PORT at which no server can listen; empty without one."""
    for url in urls:
        host, port, family = split_address(url)
        try:
            socket.create_server((host, port), family=family).close()
        except OSError as error:
            if error.errno in UNUSABLE:  # the server reports other errors at its start
                return f"{url}: expected a free port, found {os.strerror(error.errno)}; {ADVICE}"
    return ""


def answers(url: str, path: str = "", timeout_s: float = 2.0) -> bool:
    """Whether a GET of this path at HOST:PORT succeeds; at a port that speaks another protocol, as gRPC, it fails."""
    # urllib's HTTPError is an OSError
    with suppress(OSError, HTTPException), DIRECT.open(f"http://{url}/{path}", timeout=timeout_s):
        return True
    return False
