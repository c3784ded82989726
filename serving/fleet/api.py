"""The fleet's own port on loopback: lists and loads models of all servers; metrics; targets.

`export/repository.py --server` speaks to it as to a server.
"""

from __future__ import annotations

import json
import re
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest

from serving.control import ControlFailed
from serving.fleet.member import Member

LOAD = re.compile(r"/v2/repository/models/([A-Za-z0-9_.-]+)/load")
INDEX = "/v2/repository/index"
MOST_BYTES = 2**20
JSON, TEXT = "application/json", "text/plain; version=0.0.4"

Answer = tuple[int, str, bytes]


class Api:
    """Answers until the process ends; raises OSError for a taken port."""

    def __init__(
        self, port: int, members: Sequence[Member], load: Callable[[str], None], targets: Callable[[], str]
    ) -> None:
        self._members, self._load, self._targets = members, load, targets
        self._registry = CollectorRegistry()
        starts = Gauge("vitbn_fleet_server_starts", "Starts of a supervisor", ["server"], registry=self._registry)
        for member in members:
            starts.labels(str(member.index)).set_function(partial(_starts, member))
        self._rolls = Counter(
            "vitbn_fleet_rolls", "Restarts and loads of all servers", ["job", "result"], registry=self._registry
        )
        server = ThreadingHTTPServer(("127.0.0.1", port), _handler(self))
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()

    def say(self, text: str) -> None:
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime())
        print(f"{stamp}Z fleet: {text}", file=sys.stderr, flush=True)

    def rolled(self, job: str, result: str) -> None:
        self._rolls.labels(job, result.partition(":")[0]).inc()
        self.say(f"{job}: {result}")

    def get(self, path: str) -> Answer:
        if path == "/metrics":
            return 200, TEXT, generate_latest(self._registry)
        if path == "/targets":
            return 200, JSON, self._targets().encode()
        return _error(404, f"expected /metrics or /targets, found {path[:100]}")

    def post(self, path: str) -> Answer:
        try:
            if path == INDEX:
                return 200, JSON, json.dumps(self._index()).encode()
            if match := LOAD.fullmatch(path):
                self._load(match[1])
                return 200, JSON, b""
        except ControlFailed as error:
            return _error(400, str(error))
        return _error(404, f"expected a model to load or {INDEX}, found {path[:100]}")

    def _index(self) -> list[dict[str, str]]:
        """A version is READY if every server has it READY; raises ControlFailed."""
        indices = [member.control.index() for member in self._members]
        entries = []
        for model, versions in indices[0].items():
            entries += [] if versions else [{"name": model}]
            for version in versions:
                state = _common([_state(each, model, version) for each in indices])
                entries.append({"name": model, "version": str(version), "state": state})
        return entries


def _starts(member: Member) -> float:
    return float(member.starts)


def _state(index: dict[str, dict[int, str]], model: str, version: int) -> str:
    return index.get(model, {}).get(version, "UNAVAILABLE")


def _common(states: Sequence[str]) -> str:
    return states[0] if len({*states}) == 1 else "UNAVAILABLE"


def _error(status: int, text: str) -> Answer:
    return status, JSON, json.dumps({"error": text}).encode()


def _handler(api: Api) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = 10.0

        def do_GET(self) -> None:
            self._reply(api.get(self.path))

        def do_POST(self) -> None:
            length = self.headers.get("Content-Length", "0")
            if not length.isdecimal() or int(length) > MOST_BYTES:
                return self._reply(_error(413, f"expected at most {MOST_BYTES} bytes"))
            self.rfile.read(int(length))
            return self._reply(api.post(self.path))

        def _reply(self, answer: Answer) -> None:
            status, kind, body = answer
            with suppress(ConnectionError):  # who asked is gone
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    return Handler
