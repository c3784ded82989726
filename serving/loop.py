"""The loop of a program that keeps other programs: signals, tick, wait, say.

SIGTERM and SIGINT ask for the program's end, SIGHUP for a restart of its servers. Every wait consists of ticks, so
signals act within a tick.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import TypeVar

TICK_S = 0.1

Result = TypeVar("Result")


class Stopping(Exception):
    """A signal asked for the end."""


class NotInTime(Exception):
    """The message is one line for the user."""


class Loop:
    """`restart` is set by SIGHUP. Subclasses add to `tick` what they do in every tick."""

    def __init__(self) -> None:
        self._end, self.restart = threading.Event(), threading.Event()
        self._had_terminal = sys.stderr.isatty()

    def listen(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._heard)

    def _heard(self, number: int, frame: FrameType | None) -> None:
        """Takes SIGHUP of a closed terminal for the end: a restart would leave servers that nobody sees."""
        closed = self._had_terminal and not sys.stderr.isatty()
        (self.restart if number == signal.SIGHUP and not closed else self._end).set()

    def tick(self) -> None:
        """Waits for TICK_S. Raises Stopping if a signal has asked for the end."""
        if self._end.wait(TICK_S):
            raise Stopping

    def pause(self, seconds: float) -> None:
        with suppress(NotInTime):
            self.wait(lambda: False, seconds, "")

    def wait(self, condition: Callable[[], object], seconds: float, what: str) -> None:
        """Ticks until `condition()` is true. After `seconds` it raises NotInTime, whose text names `what`."""
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                raise NotInTime(f"expected {what} within {seconds:g} s")
            self.tick()

    def call(
        self, function: Callable[[], Result], seconds: float, check: Callable[[], object] = lambda: None
    ) -> Result:
        """Calls `function` in a thread and ticks meanwhile. Returns and raises what it does, or raises NotInTime.

        `check` is called with each tick, and ends the wait by what it raises. gRPC's own deadline is not enough: it may
        be lost when the wall clock jumps.
        """

        def ended() -> bool:
            check()
            return not thread.is_alive()

        results: list[Result] = []
        failures: list[Exception] = []

        def run() -> None:
            try:
                results.append(function())
            except Exception as error:
                failures.append(error)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        try:
            self.wait(ended, seconds, "an answer")
        except NotInTime:
            raise NotInTime(f"no answer within {seconds:g} s") from None
        if failures:
            raise failures[0]
        return results[0]


def say(program: str, text: str) -> None:
    """A line with the time in UTC on stderr; a terminal that is gone is no error."""
    moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime())
    with suppress(OSError, ValueError):
        sys.stderr.write(f"{moment}Z {program}: {text}\n")
        sys.stderr.flush()
