"""Deadlines for slow senders, bounds on connections in total and per address.

At a bound, the most crowded address loses the connection that has waited longest without a complete request, so slow
connections lock nobody out. If it has none, the new connection is closed.
"""

import json
import socket
import time
from collections import Counter
from contextlib import suppress
from typing import Any

from waitress.channel import HTTPChannel
from waitress.parser import HTTPRequestParser
from waitress.task import ErrorTask
from waitress.utilities import BadRequest, RequestEntityTooLarge

from clients.web.guards import HEADERS, sender_of

CONNECTIONS = 96
CONNECTIONS_OF_ADDRESS = 32  # a browser opens 6
HEADER_S = 10.0  # from the connection or a request's first byte to the end of the headers
BODY_S = 30.0  # from there to the end of its body, also of a refused one
THROWN_BYTES = 1_000_000  # at once


class Refusal(ErrorTask):
    """waitress's refusals in the application's form."""

    def execute(self) -> None:
        error = self.request.error
        body = json.dumps({"error": " ".join(f"{error.reason}: {error.body}".split())}).encode() + b"\n"
        self.status = f"{error.code} {error.reason}"
        self.response_headers.extend([*HEADERS.items(), ("Content-Type", "application/json")])
        self.set_close_on_finish()
        self.content_length = len(body)
        self.write(body)
        self.channel.refused_body = isinstance(error, RequestEntityTooLarge)


class Parser(HTTPRequestParser):
    """waitress's parser lets errors of int() and urlsplit() through, and names its own settings."""

    def received(self, data: bytes) -> int:
        try:
            taken = int(super().received(data))
        except ValueError as error:
            self.error = BadRequest(str(error))
            self.completed = True
            return len(data)
        if isinstance(self.error, RequestEntityTooLarge):
            most = self.adj.max_request_body_size - 1
            self.error = RequestEntityTooLarge(f"expected a picture of at most {most / 1e6:g} MB, found a larger body")
        return taken


class Channel(HTTPChannel):
    error_task_class = Refusal
    parser_class = Parser
    refused_body = False  # its sender may still send it
    _throws_away = False

    def __init__(self, server: Any, sock: Any, addr: tuple[Any, ...], adj: Any, map: Any = None) -> None:
        self.sender = sender_of(str(addr[0]))
        admitted = _make_room(list(server.active_channels.values()), self.sender)
        super().__init__(server, sock, addr, adj, map)
        self.since_s = time.monotonic()  # start of the connection or request, or end of the last request
        self._limit_s: float | None = HEADER_S
        self.will_close = not admitted

    @property
    def waits(self) -> bool:
        return not self.requests and not self.will_close

    def readable(self) -> bool:
        """waitress asks at least once a second."""
        if self._limit_s is not None and self.waits and time.monotonic() > self.since_s + self._limit_s:
            self.will_close = True
        return bool(super().readable())

    def handle_close(self) -> None:
        """At first only our side, after the refusal of a body."""
        if not self.refused_body or self._throws_away:
            super().handle_close()
            return
        self._throws_away, self.will_close = True, False
        self.since_s, self._limit_s = time.monotonic(), BODY_S
        with suppress(OSError):  # the sender is gone
            self.socket.shutdown(socket.SHUT_WR)

    def handle_read(self) -> None:
        if self._throws_away:
            self.recv(THROWN_BYTES)  # at the sender's end this closes
        else:
            super().handle_read()

    def received(self, data: bytes) -> bool:
        before = self.request
        in_body = before is not None and before.headers_finished
        result = bool(super().received(data))
        now_s = time.monotonic()
        if self.request is None:  # waitress bounds idle time
            self.since_s, self._limit_s = now_s, None
        elif self.request.headers_finished and not (in_body and self.request is before):
            self.since_s, self._limit_s = now_s, BODY_S
        elif self._limit_s is None:  # a new request begins
            self.since_s, self._limit_s = now_s, HEADER_S
        return result


def _make_room(channels: list[Channel], sender: str) -> bool:
    """False if a new connection has no room."""
    counts = Counter(each.sender for each in channels if not each.will_close)
    if counts[sender] >= CONNECTIONS_OF_ADDRESS:
        crowd = sender
    elif counts.total() >= CONNECTIONS:
        crowd = counts.most_common(1)[0][0]
    else:
        return True
    waiting = [each for each in channels if each.sender == crowd and each.waits]
    if waiting:
        min(waiting, key=lambda channel: channel.since_s).will_close = True
    return bool(waiting)
