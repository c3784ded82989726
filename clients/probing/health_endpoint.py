"""Serves a probe's last verdict over HTTP, for the health checks of a proxy."""

from __future__ import annotations

import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from clients.probing.verdicts import Probe
from common.addresses import split_address


class Health:
    """Serves the last verdict at `http://address/`, in a thread. Raises OSError if the address is taken.

    address: HOST:PORT. stale_s: seconds. The HTTP status is 200 while the last verdict passes and is at most `stale_s`
    old, else 503; the body is the verdict as JSON.
    """

    def __init__(self, address: str, stale_s: float) -> None:
        host, port, family = split_address(address)
        self._stale_s = stale_s
        self._last_verdict = (float("-inf"), False, "{}")  # time.monotonic() in seconds, passes, JSON
        health = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"  # the proxy keeps its connection
            timeout = 10.0

            def do_GET(self) -> None:
                status, body = health.answer()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *arguments: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            address_family = family

        server = Server((host, port), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()

    def update(self, probe: Probe) -> None:
        self._last_verdict = (time.monotonic(), probe.ok, probe.to_json())

    def answer(self) -> tuple[int, bytes]:
        """The HTTP status and the body."""
        updated_s, ok, text = self._last_verdict
        return (200 if ok and time.monotonic() - updated_s <= self._stale_s else 503), text.encode()
