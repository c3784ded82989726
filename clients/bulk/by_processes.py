"""Distributes parts to worker processes on this machine, normally a process per core. A dead process is replaced.

If the driver, the process of the command, dies, its workers end after their current part.
"""

from __future__ import annotations

import signal
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from multiprocessing.connection import Connection, wait
from typing import Any, cast

from clients.bulk.fork_server import CONTEXT
from clients.bulk.job_manifest import Job, Part
from clients.bulk.scoring import Outcome, classify_part
from vitbn_packages import in_words, is_ours

ATTEMPTS = 3  # a picture that kills its process must not stop the run


def run(job: Job, parts: Iterator[Part], processes: int, on_retry: Callable[[Outcome], None]) -> Iterator[Outcome]:
    """Yields outcomes in the order in which parts end. `on_retry` gets each failure that is followed by a retry."""
    with ExitStack() as stack:
        workers = [stack.enter_context(_Worker(job)) for _ in range(processes)]
        retries: deque[tuple[Part, int]] = deque()  # with the number of the attempt
        idle, busy = list(workers), dict[Any, _Worker]()
        while True:
            while idle and (task := _next_task(retries, parts)) is not None:
                worker = idle.pop()
                worker.start(*task)
                busy[worker.connection] = worker
            if not busy:
                return
            for connection in wait(list(busy)):
                worker = busy.pop(connection)
                outcome = worker.outcome()
                idle.append(worker)
                if outcome.failure and worker.attempt < ATTEMPTS:
                    on_retry(outcome)
                    retries.append((worker.part, worker.attempt + 1))
                else:
                    yield outcome


def _next_task(retries: deque[tuple[Part, int]], parts: Iterator[Part]) -> tuple[Part, int] | None:
    """A part and the number of the attempt; None if all parts are distributed."""
    if retries:
        return retries.popleft()
    part = next(parts, None)
    return None if part is None else (part, 1)


class _Worker:
    """A process that classifies a part at a time. It starts with its first part, and again after its death."""

    part: Part
    attempt: int

    def __init__(self, job: Job) -> None:
        self._job = job
        self._process: Any = None

    def start(self, part: Part, attempt: int) -> None:
        """Sends the part to the process; `connection` becomes readable when the part ends."""
        if self._process is None:
            self.connection, far_end = CONTEXT.Pipe()
            process = CONTEXT.Process(target=_serve, args=(self._job, far_end), daemon=True)
            process.start()
            self._process = process
            far_end.close()  # else the death of the process would not end the pipe
        self.part, self.attempt = part, attempt
        with suppress(OSError):  # the process has died; `outcome` reports it
            self.connection.send(part)

    def outcome(self) -> Outcome:
        """Waits for the outcome of the part; a dead process is a failure."""
        try:
            return cast(Outcome, self.connection.recv())
        except (EOFError, OSError):
            self._process.join()
            code, self._process = self._process.exitcode, None
            self.connection.close()
            return Outcome(self.part.number, failure=f"its process ended with code {code}")

    def __enter__(self) -> _Worker:
        return self

    def __exit__(self, *unused: object) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.join()
            self.connection.close()


def _serve(job: Job, connection: Connection) -> None:
    """Runs in the process: classifies the parts that arrive, until the driver closes the connection."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the driver ends this process
    try:
        while True:
            part: Part = connection.recv()
            try:
                outcome = classify_part(job, part)
            except Exception as error:  # an error in one part must not end the run
                known = isinstance(error, OSError) or is_ours(error)
                kind = "" if known else f"{type(error).__name__}: "
                outcome = Outcome(part.number, failure=kind + in_words(error))
            connection.send(outcome)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return
