"""Keeps slow connections to the page open. Out: a row with the worst wait of another visitor, in ms.

The page runs without Triton.
"""

from __future__ import annotations

import http.client
import socket
import subprocess
import sys
import time
from contextlib import ExitStack, closing
from typing import Any

CONNECTIONS, STRANGER = 500, "127.0.0.2"  # slow connections, and the address that they come from
UNFINISHED = b"POST /api/classify HTTP/1.1\r\nHost: localhost\r\n"
ASK_S = 5.0


def slow_connections() -> dict[str, Any]:
    """The row of another visitor's requests while CONNECTIONS clients never finish their requests."""
    command = [sys.executable, "-m", "clients.web.app", "--port", "0", "--url", "127.0.0.1:1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as page, ExitStack() as stack:
        stack.callback(page.terminate)
        line = page.stdout.readline() if page.stdout else ""
        host, _, port = line.split("http://")[1].split()[0].partition(":")
        for _ in range(CONNECTIONS):
            slow = stack.enter_context(socket.create_connection((host, int(port)), 30, (STRANGER, 0)))
            slow.sendall(UNFINISHED)
        waits_ms, failed, ends = list[float](), 0, time.monotonic() + ASK_S
        while time.monotonic() < ends:
            started = time.perf_counter()
            with closing(http.client.HTTPConnection(host, int(port), timeout=30)) as visitor:
                visitor.request("GET", "/")
                failed += visitor.getresponse().status != 200
            waits_ms.append(1e3 * (time.perf_counter() - started))
    counts = {"sent": len(waits_ms), "right": len(waits_ms) - failed, "wrong": 0, "failed": failed}
    return {"connections": CONNECTIONS, **counts, "worst_ms": max(waits_ms)}
