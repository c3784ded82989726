"""The main loop of a program that supervises other programs: signals, tick, wait, say.

SIGTERM and SIGINT ask for the program's end, SIGHUP for a restart of its servers. Every wait consists of ticks, so a
signal takes effect within TICK_S.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from types import FrameType
from typing import TypeVar

TICK_S = 0.1

Result = TypeVar("Result")


class Stopping(Exception):
    """A signal asked for the end."""


class NotInTime(Exception):
    """A wait was too long. The message is one line for the user."""


class Loop:
    """The loop; SIGHUP sets `restart`. Subclasses extend `tick`."""

    def __init__(self) -> None:
        self._end, self.restart = threading.Event(), threading.Event()
        self._had_terminal = sys.stderr.isatty()

    def listen(self) -> None:
        """Takes over SIGTERM, SIGINT and SIGHUP."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        """Sets the event. SIGHUP from a closed terminal asks for the end: a restart would leave servers without one."""
        lost_terminal = self._had_terminal and not sys.stderr.isatty()
        (self.restart if number == signal.SIGHUP and not lost_terminal else self._end).set()

    def tick(self) -> None:
        """Waits for TICK_S. Raises Stopping if a signal has asked for the end."""
        if self._end.wait(TICK_S):
            raise Stopping

    def pause(self, seconds: float) -> None:
        """Ticks for `seconds`. Raises what `tick` raises."""
        with suppress(NotInTime):
            self.wait(lambda: False, seconds, "")

    def wait(self, condition: Callable[[], object], seconds: float, what: str) -> None:
        """Ticks until `condition()` is true. Raises NotInTime after `seconds`, with a message that names `what`."""
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                raise NotInTime(f"expected {what} within {seconds:g} s")
            self.tick()

    def call(
        self, function: Callable[[], Result], seconds: float, check: Callable[[], object] = lambda: None
    ) -> Result:
        """Calls `function` in a thread and ticks meanwhile. Returns its result or raises its error.

        Raises NotInTime after `seconds`: gRPC's deadline is not enough, since it may be lost when the wall clock jumps.
        `check` is called before each tick; an error that it raises ends the wait.
        """

        def has_ended() -> bool:
            check()
            return future.done()

        def run() -> None:
            try:
                future.set_result(function())
            except BaseException as error:
                future.set_exception(error)

        future = Future[Result]()
        threading.Thread(target=run, daemon=True).start()
        try:
            self.wait(has_ended, seconds, "an answer")
        except NotInTime:
            raise NotInTime(f"no answer within {seconds:g} s") from None
        return future.result()


def say(program: str, text: str) -> None:
    """Writes a line with the time in UTC to stderr; a closed terminal is no error."""
    moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime())
    with suppress(OSError, ValueError):
        sys.stderr.write(f"{moment}Z {program}: {text}\n")
        sys.stderr.flush()
