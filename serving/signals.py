"""What signals ask of a supervisor and of a fleet: SIGTERM and SIGINT an end, SIGHUP other servers.

Waiting goes in ticks, so a signal need not wait.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import TypeVar

TICK_S = 0.1

Result = TypeVar("Result")


class Stopping(Exception):
    """A signal asked for the end."""


class NoAnswer(Exception):
    """A call has taken too long."""


class Signals:
    """`end` and `restart` are set by signals."""

    def __init__(self) -> None:
        self.end, self.restart = threading.Event(), threading.Event()
        self._had_terminal = sys.stderr.isatty()

    def listen(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._heard)

    def _heard(self, number: int, frame: FrameType | None) -> None:
        """Whose terminal is closed gets SIGHUP too, and would be left with servers that nobody sees."""
        closed = self._had_terminal and not sys.stderr.isatty()
        (self.restart if number == signal.SIGHUP and not closed else self.end).set()

    def tick(self) -> None:
        """Raises Stopping."""
        if self.end.wait(TICK_S):
            raise Stopping

    def call(self, function: Callable[[], Result], seconds: float, tick: Callable[[], None]) -> Result:
        """In a thread, with `tick` meanwhile. Returns what `function` returns, raises what it raises.

        NoAnswer after `seconds`: gRPC's own deadline may be lost when the wall clock jumps.
        """
        deadline = time.monotonic() + seconds
        results: list[Result] = []
        failures: list[Exception] = []

        def run() -> None:
            try:
                results.append(function())
            except Exception as error:
                failures.append(error)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        while thread.is_alive():
            if time.monotonic() > deadline:
                raise NoAnswer(f"no answer within {seconds:g} s")
            tick()
        if failures:
            raise failures[0]
        return results[0]
