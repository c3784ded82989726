"""Distributes parts to this machine's cores: one process per core, replaced when it dies.

If the driver dies, its processes end after the part in hand.
"""

from __future__ import annotations

import signal
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from multiprocessing.connection import Connection, wait
from typing import Any, cast

from clients.bulk.fork_server import CONTEXT
from clients.bulk.job import Job, Part
from clients.bulk.scoring import Outcome, do_part

ATTEMPTS = 3  # a picture that kills its process must not stop the run


def run(job: Job, parts: Iterator[Part], processes: int, on_retry: Callable[[Outcome], None]) -> Iterator[Outcome]:
    """Outcomes as the parts end; `on_retry` is called with a failure before the part's next attempt."""
    with ExitStack() as stack:
        workers = [stack.enter_context(_Worker(job)) for _ in range(processes)]
        again: deque[tuple[Part, int]] = deque()
        idle, busy = list(workers), dict[Any, _Worker]()
        while True:
            while idle and (task := _next(again, parts)) is not None:
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
                    again.append((worker.part, worker.attempt + 1))
                else:
                    yield outcome


def _next(again: deque[tuple[Part, int]], parts: Iterator[Part]) -> tuple[Part, int] | None:
    if again:
        return again.popleft()
    part = next(parts, None)
    return None if part is None else (part, 1)


class _Worker:
    part: Part
    attempt: int

    def __init__(self, job: Job) -> None:
        self._job = job
        self._process: Any = None

    def start(self, part: Part, attempt: int) -> None:
        if self._process is None:
            self.connection, far_end = CONTEXT.Pipe()
            self._process = CONTEXT.Process(target=_serve, args=(self._job, far_end), daemon=True)
            self._process.start()
            far_end.close()  # else the process's death would not end the pipe
        self.part, self.attempt = part, attempt
        with suppress(OSError):  # the process has died; `outcome` reports it
            self.connection.send(part)

    def outcome(self) -> Outcome:
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
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the driver ends this process
    try:
        while True:
            part: Part = connection.recv()
            try:
                outcome = do_part(job, part)
            except Exception as error:  # an error in one part must not end the run
                outcome = Outcome(part.number, failure=f"{type(error).__name__}: {' '.join(str(error).split())}")
            connection.send(outcome)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return
