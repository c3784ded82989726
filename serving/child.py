"""A child process that this program supervises: start, ready, alive, revive, stop.

In: a command. Out: its process, in a new session, so that Ctrl-C in a terminal does not reach it. The child ends with
the thread that started it, even if that thread is killed.

The children of serving/:
- triton_server, a supervised Triton: ready when it answers its index; alive while it runs; revived at once, then after
  0.5 to 30 s; SIGTERM, SIGKILL after 4.5 s; its stubs and their memory are removed with it; output to a bounded pipe
- prober, the repeated probe: alive while it writes verdicts; revived after 5 s; SIGKILL; it writes JSON lines
- fleet, a supervisor: ready when its health port answers; revived after 5 s; SIGTERM, SIGKILL after 8 s
- proxy/envoy_process, Envoy: ready when it says LIVE; alive while it runs and answers; revived after 1 s; its listeners
  are drained for 2 s, then SIGTERM, SIGKILL after 3 s; output to a file
- local_server, a server for a `with` block: ready when Triton says so; started again after a crash at its start;
  SIGTERM, SIGKILL after 20 s; the other processes of its session are killed with it; output to a file
"""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import IO

import psutil

WITH_PARENT = Path(__file__).with_name("end_with_parent.py")
POLL_S, KILL_S = 0.05, 1.0


def wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    """Waits until `condition()` is true, at most for `seconds`. Returns whether it is."""
    deadline = time.monotonic() + seconds
    while not (holds := condition()) and time.monotonic() < deadline:
        time.sleep(POLL_S)
    return holds


class ChildFailed(RuntimeError):
    """A child has ended, or is not ready in time. The message says which; the caller adds the child's name."""


class Child:
    """A command and its process. Subclasses set the attributes of the class.

    log:         gets the child's output and errors; a file at a path is appended to; None: the child inherits this
                 process's stdout and stderr.
    environment: variables added to this process's environment.
    """

    grace_s = 5.0  # between SIGTERM and SIGKILL
    pause_s = 0.0  # between two starts by `revive`
    output: int | None = None  # a file descriptor, or subprocess.PIPE, that gets the output instead of the log

    def __init__(
        self,
        command: Sequence[str],
        log: Path | IO[bytes] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._command, self._log, self._environment = [*command], log, dict(environment or {})
        self._started_s = -math.inf
        self.process: subprocess.Popen[bytes] | None = None
        self.starts = 0

    @property
    def pid(self) -> int:
        if self.process is None:
            raise ChildFailed("was never started")
        return self.process.pid

    def start(self) -> None:
        """Starts the command. Raises OSError and RuntimeError if no descriptor, process or thread is available."""
        self._started_s = time.monotonic()
        with self._log.open("ab") if isinstance(self._log, Path) else nullcontext(self._log) as log:
            self.process = subprocess.Popen(
                [sys.executable, "-IS", WITH_PARENT, str(os.getpid()), *self._command],
                stdin=subprocess.DEVNULL,
                stdout=log if self.output is None else self.output,
                stderr=log,
                start_new_session=True,
                env={**os.environ, **self._environment},
            )
        self.starts += 1

    def wait_until_ready(self, is_ready: Callable[[], bool], timeout_s: float) -> None:
        """Returns when `is_ready()` is true. Raises ChildFailed if the child ends first, or after `timeout_s`."""
        in_time = wait_until(lambda: self.wait(0) is not None or is_ready(), timeout_s)
        if self.wait(0) is not None:
            raise ChildFailed(f"stopped with {self.ending}")
        if not in_time:
            raise ChildFailed(f"was not ready after {timeout_s:g} s")

    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def revive(self) -> bool:
        """Starts the child again if it was started and is no longer alive, at most once in `pause_s`.

        Returns whether the child was started. A start that fails for lack of resources raises nothing: the next call
        tries again.
        """
        if self.process is None or time.monotonic() - self._started_s < self.pause_s or self.alive():
            return False
        self.stop()
        with suppress(OSError, RuntimeError):
            self.start()
            return True
        return False

    def wait(self, seconds: float) -> int | None:
        """Waits for the child's end. Returns its exit code, -N for signal N; None if it still runs after `seconds`."""
        with suppress(subprocess.TimeoutExpired):
            return self.process.wait(seconds) if self.process else None
        return None

    @property
    def ending(self) -> str:
        """The exit code or signal that ended the child, in words; empty while it runs."""
        code = self.wait(0)
        if code is None:
            return ""
        return f"exit code {code}" if code >= 0 else f"signal {-code} ({signal.strsignal(-code)})"

    def terminate(self) -> None:
        """Sends SIGTERM and does not wait, so that several children can end at the same time."""
        if self.process is not None:
            self.process.terminate()

    def stop(self, grace_s: float | None = None) -> int | None:
        """Sends SIGTERM, and SIGKILL after `grace_s`. Returns the exit code, None if the child was never started."""
        self.terminate()
        code = self.wait(self.grace_s if grace_s is None else grace_s)
        if code is None and self.process is not None:
            self.process.kill()
            return self.process.wait()
        return code

    def kill_session(self, grace_s: float = 0.0) -> int:
        """Kills the processes that are left in the ended child's session after `grace_s`. Returns their number."""
        wait_until(lambda: not self._session(), grace_s)
        remaining = self._session()
        for process in remaining:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        wait_until(lambda: not self._session(), KILL_S)
        return len(remaining)

    def _session(self) -> list[psutil.Process]:
        """The processes of the child's session, without zombies, which stay until a parent reads their exit code.

        Listing processes needs a free descriptor. Without one the child's process group is killed instead.
        """
        living = []
        try:
            processes = [*psutil.process_iter()]
        except OSError:
            with suppress(OSError):
                os.killpg(self.pid, signal.SIGKILL)
            return []
        for process in processes:
            with suppress(OSError, psutil.NoSuchProcess):
                if os.getsid(process.pid) == self.pid and process.status() != psutil.STATUS_ZOMBIE:
                    living.append(process)
        return living
