"""HTTP requests that end by a deadline, for the probe.

In: a server's address, a path and a body. Out: the body of the answer, or ProbeFailed. Only the standard library is
imported, so that a probe starts within a fraction of a second.
"""

from __future__ import annotations

import errno
import json
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPResponse
from typing import Any

from clients.probing.verdicts import ProbeFailed


@dataclass
class DeadlineServer:
    """Sends HTTP requests to `url` (HOST:PORT). All end by `deadline_s`, in seconds of time.monotonic()."""

    url: str
    headers: Mapping[str, str]
    deadline_s: float

    def ask(
        self, path: str, body: bytes | None = None, header_bytes: int = 0, until_s: float | None = None
    ) -> tuple[bytes, int]:
        """Returns the answer's body, and the length of the JSON at its start in bytes.

        path:         without a leading slash. body: None sends a GET, else a POST.
        header_bytes: length of the JSON at the start of `body`.
        until_s:      replaces `deadline_s` unless None.
        Raises ProbeFailed; OSError if this process has no free descriptor, which says nothing about the server.
        """
        left_s = (until_s or self.deadline_s) - time.monotonic()
        if left_s <= 0:
            raise ProbeFailed("no answer in time", passing=True)
        headers = {"Connection": "close", **self.headers}
        headers |= {"Inference-Header-Content-Length": str(header_bytes)} if header_bytes else {}
        end_s = time.monotonic() + left_s
        try:
            with closing(HTTPConnection(self.url, timeout=left_s)) as connection:
                connection.connect()
                with _shut_down_after(connection.sock, left_s):
                    connection.request("GET" if body is None else "POST", f"/{path}", body, headers)
                    answer = connection.getresponse()
                    if answer.status >= 300:
                        raise ProbeFailed(_refusal(answer), passing=answer.status == 503)
                    content = answer.read()
            if time.monotonic() > end_s:
                raise TimeoutError("timed out")
            json_bytes = int(answer.headers.get("Inference-Header-Content-Length") or len(content))
        except (OSError, ValueError, HTTPException) as error:
            if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
                raise
            late = isinstance(error, TimeoutError) or time.monotonic() > end_s
            reason = "timed out" if late else str(error) if isinstance(error, OSError | ValueError) else repr(error)
            raise ProbeFailed(f"no answer: {reason}", passing=late) from error
        return content, json_bytes

    def json(self, path: str) -> Any:
        """GETs `path` and parses the answer as JSON. Raises ProbeFailed."""
        try:
            return json.loads(self.ask(path)[0])
        except (ValueError, RecursionError) as error:
            raise ProbeFailed(f"{path}: expected JSON, found {error}") from error


def _refusal(answer: HTTPResponse) -> str:
    message = ""
    with suppress(OSError, HTTPException):
        message = " ".join(answer.read(500).decode(errors="replace").split())
    return f"HTTP {answer.status} {message}"


@contextmanager
def _shut_down_after(connected: socket.socket, seconds: float) -> Iterator[None]:
    """Shuts the socket down after `seconds`, because the socket's own timeout starts anew with every byte."""

    def shut_down() -> None:
        with suppress(OSError):
            connected.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(seconds, shut_down)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
