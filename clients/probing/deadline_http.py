"""HTTP requests that end by a deadline, with the standard library alone: a probe starts within a fraction of a second.

In: a server's address, a path and a body. Out: the body of the answer, or ProbeFailed.
"""

from __future__ import annotations

import errno
import json
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException, HTTPResponse
from typing import Any

from clients.probing.verdicts import ProbeFailed


@dataclass
class Server:
    """Sends HTTP requests to `url` (HOST:PORT), which all end by `deadline`, in seconds of time.monotonic()."""

    url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    deadline: float = 0.0

    def ask(self, path: str, body: bytes | None = None, header_bytes: int = 0, until: float = 0.0) -> tuple[bytes, int]:
        """The answer's body and the length of its JSON part in bytes.

        Raises ProbeFailed, and OSError if this process gets no descriptor: that says nothing of the server.
        `header_bytes`: length of the JSON part of `body`. `until` replaces `deadline`.
        """
        left_s = (until or self.deadline) - time.monotonic()
        if left_s <= 0:
            raise ProbeFailed("no answer in time", passing=True)
        headers = {"Connection": "close", **self.headers}
        headers |= {"Inference-Header-Content-Length": str(header_bytes)} if header_bytes else {}
        end_s = time.monotonic() + left_s
        try:
            with closing(HTTPConnection(self.url, timeout=left_s)) as connection:
                connection.connect()
                with _cut_off(connection.sock, left_s):
                    connection.request("GET" if body is None else "POST", f"/{path}", body, headers)
                    answer = connection.getresponse()
                    if answer.status >= 300:
                        raise ProbeFailed(_refusal(answer), passing=answer.status == 503)
                    content = answer.read()
            if time.monotonic() > end_s:
                raise TimeoutError("timed out")
            length = int(answer.headers.get("Inference-Header-Content-Length") or len(content))
        except (OSError, ValueError, HTTPException) as error:
            if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
                raise
            late = isinstance(error, TimeoutError) or time.monotonic() > end_s
            words = "timed out" if late else str(error) if isinstance(error, OSError | ValueError) else repr(error)
            raise ProbeFailed(f"no answer: {words}", passing=late) from error
        return content, length

    def json(self, path: str) -> Any:
        """The JSON that the server answers. Raises ProbeFailed."""
        try:
            return json.loads(self.ask(path)[0])
        except ValueError as error:
            raise ProbeFailed(f"{path}: expected JSON, found {error}") from error


def _refusal(answer: HTTPResponse) -> str:
    words = ""
    with suppress(OSError, HTTPException):
        words = " ".join(answer.read(500).decode(errors="replace").split())
    return f"HTTP {answer.status} {words}"


@contextmanager
def _cut_off(connected: socket.socket, seconds: float) -> Iterator[None]:
    """Ends the connection after `seconds`: the socket's timeout begins anew with each byte."""

    def shut() -> None:
        with suppress(OSError):
            connected.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(seconds, shut)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
