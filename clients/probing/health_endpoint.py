"""Serves the last verdict of a probe over HTTP, for a proxy's health checks."""

from __future__ import annotations

import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from clients.probing.verdicts import Probe


class Health:
    """Serves the last verdict at `http://address/`, in a thread. Raises OSError for a taken address.

    The status is 200 while the verdict passes and is at most `stale_s` old, else 503.
    """

    def __init__(self, address: str, stale_s: float) -> None:
        host, _, port = address.rpartition(":")
        self._stale_s, self._last = stale_s, (float("-inf"), False, "{}")
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
            address_family = socket.AF_INET6 if ":" in host else socket.AF_INET

        server = Server((host.strip("[]"), int(port)), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()

    def heard(self, probe: Probe) -> None:
        self._last = (time.monotonic(), probe.ok, probe.to_json())

    def answer(self) -> tuple[int, bytes]:
        heard_s, ok, text = self._last
        return (200 if ok and time.monotonic() - heard_s <= self._stale_s else 503), text.encode()
