"""Waits of the supervisor and the fleet that a signal ends."""

import subprocess
import threading
from collections.abc import Callable

TICK_S = 0.1


class Stopping(Exception):
    pass


class ServerLost(Exception):
    """`reason` is a short word for the metric."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


class Waits:
    """Every wait raises Stopping once `stopped` is set."""

    def __init__(self) -> None:
        self.stopped = threading.Event()

    def rest(self, seconds: float) -> None:
        if self.stopped.wait(seconds):
            raise Stopping

    def tick(self) -> None:
        self.rest(TICK_S)

    def check(self, process: subprocess.Popen[bytes]) -> None:
        if self.stopped.is_set():
            raise Stopping
        if process.poll() is not None:
            raise ServerLost("died", f"exit code {process.returncode}")

    def call(self, function: Callable[[], None]) -> None:
        """In a thread: a signal need not wait."""
        in_thread(function, self.tick)


def in_thread(function: Callable[[], None], tick: Callable[[], None]) -> None:
    """Ticks until `function` ends; raises what it raises."""
    failures: list[Exception] = []

    def run() -> None:
        try:
            function()
        except Exception as error:
            failures.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    while thread.is_alive():
        tick()
    if failures:
        raise failures[0]
