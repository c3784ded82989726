"""The page's application in this process, and raw requests to it."""

import http.client
import io
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from waitress import wasyncore

from clients.options import Options
from clients.web import triton_requests
from clients.web.guards import HEADERS, RateLimit
from clients.web.routes import create_app, open_server
from common.addresses import join_address

DIGIT = (Path(__file__).resolve().parents[3] / "digit.png").read_bytes()  # a 3
PNG = {"Content-Type": "image/png"}
HANG_S = 30.0


@contextmanager
def listening(
    triton_url: str, rate: RateLimit | None = None, model: str | None = None, behind_proxy: bool = False
) -> Iterator[str]:
    triton = triton_requests.Triton(Options(triton_url, timeout_s=5.0, retry_s=0), model)
    app = create_app(triton, rate or RateLimit(rate_hz=1e6, burst=10**6))
    server = open_server(app, "127.0.0.1", 0, behind_proxy)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        yield join_address(server.effective_host, server.effective_port)
    finally:
        server.trigger.pull_trigger(lambda: wasyncore.close_all(server._map))
        thread.join()
        server.task_dispatcher.shutdown()
        triton.close()


def ask(
    address: str, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None
) -> tuple[int, dict[str, str], bytes]:
    """Status, headers (lower case), body."""
    connection = http.client.HTTPConnection(address, timeout=HANG_S)
    try:
        connection.request(method, path, body, headers or {})
        answer = connection.getresponse()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
    finally:
        connection.close()


def classify(address: str, body: bytes, query: str = "", **headers: str) -> tuple[int, dict]:
    status, _, content = ask(address, "POST", f"/api/classify{query}", body, {**PNG, **headers})
    return status, json.loads(content)


def check_refusal(status: int, headers: dict[str, str], content: bytes) -> str:
    assert 400 <= status < 500 or status in (501, 503)
    assert headers["content-type"] == "application/json"
    assert {name.lower(): value for name, value in HEADERS.items()}.items() <= headers.items()
    answer = json.loads(content)
    assert list(answer) == ["error"]
    assert answer["error"]
    assert "\n" not in answer["error"]
    return answer["error"]


def send_raw(address: str, content: bytes) -> bytes:
    host, port = address.split(":")
    with socket.create_connection((host, int(port)), timeout=HANG_S) as raw:
        raw.sendall(content)
        raw.shutdown(socket.SHUT_WR)
        received = b""
        while chunk := raw.recv(65536):
            received += chunk
    return received


def check_raw(received: bytes, head_only: bool = False) -> None:
    """No answer, an answer of ours, or a refusal of waitress, which is plain text."""
    if not received:
        return
    answer = http.client.HTTPResponse(_Stream(received), method="HEAD" if head_only else "GET")
    answer.begin()
    content, headers = answer.read(), {name.lower(): value for name, value in answer.getheaders()}
    if answer.status < 400:
        assert answer.status in (200, 206, 304)
    elif not head_only and headers["content-type"].startswith("text/plain"):
        assert answer.status in (400, 413, 431, 501)
    elif not head_only:
        check_refusal(answer.status, headers, content)


class _Stream:
    def __init__(self, content: bytes) -> None:
        self._content = content

    def makefile(self, mode: str) -> io.BytesIO:
        return io.BytesIO(self._content)
