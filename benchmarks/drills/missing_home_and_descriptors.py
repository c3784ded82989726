"""Drills on machines without a home folder, or with few file descriptors.

In: a `DrillBench`. Out: counts of requests, what the supervisor did, and the bytes that it and the server wrote.
"""

from __future__ import annotations

import os
import resource
import shlex
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

from benchmarks.drills.drill_setup import (
    HEAL_S,
    DrillBench,
    supervisor_actions,
    supervisor_command,
    wait_until,
    wait_until_right,
)
from benchmarks.measure.result_file import Row
from serving.local_server import Server
from serving.ports import free_ports

SETTLE_S, PAUSE_S = 3.0, 0.02
TOO_FEW, FEW = 64, 160  # descriptors with which the server refuses to start, and with which it starts
IDLE_CONNECTIONS, HELD_S = 200, 5.0


def no_home(bench: DrillBench) -> Row:
    """Serves without a home folder, as for a cluster's user who is not in /etc/passwd."""
    names = ("HOME", "XDG_CACHE_HOME", "XDG_RUNTIME_DIR", "XDG_STATE_HOME")
    before = {name: os.environ.pop(name) for name in names if name in os.environ}
    try:
        with bench.server() as server, bench.traffic(server) as verdicts:
            time.sleep(SETTLE_S)
            actions = supervisor_actions(server)
    finally:
        os.environ |= before
    return {**verdicts.row(), **actions}


def few_descriptors(bench: DrillBench) -> Row:
    """A start with too few descriptors must fail at once. Then idle connections take all descriptors of a server that
    has few.
    """
    refused_start = _refused_start(bench)
    with ExitStack() as stack:
        with _limit(FEW):
            server = stack.enter_context(bench.server())
        with bench.traffic(server, PAUSE_S) as verdicts:
            log_length, filled = len(server.log()), set[int]()
            with ExitStack() as idle:
                wait_until(lambda: _fill_until_logged(server, idle, filled))
                time.sleep(HELD_S)
            ended = time.perf_counter()
            wait_until_right(server)
            time.sleep(SETTLE_S)
        row = {**verdicts.row(), **supervisor_actions(server), "recovery_s": verdicts.recovery_s(ended)}
        return {**row, **refused_start, "log_bytes": len(server.log()) - log_length}


def _fill_until_logged(server: Server, idle: ExitStack, filled: set[int]) -> bool:
    """Whether the supervisor's log mentions the descriptors. Until then, connections take those of each new server.

    `idle`: holds the connections. `filled`: the restarts after which a server was filled. Triton 2.51 may crash as soon
    as it has no descriptor left, before the supervisor has counted them.
    """
    restarts, (host, _, port) = supervisor_actions(server)["restarts"], server.http_url.partition(":")
    if restarts not in filled:
        with suppress(OSError):  # the server does not listen yet, or has crashed already
            for _ in range(IDLE_CONNECTIONS):
                idle.enter_context(socket.create_connection((host, int(port))))
            filled.add(restarts)
    return "descriptors" in server.log()


def _refused_start(bench: DrillBench) -> Row:
    """Whether a start with too few descriptors fails with a message about them, and after how many seconds."""
    with bench.repository() as repository:
        command = f"ulimit -n {TOO_FEW}; exec {shlex.join(supervisor_command(repository, free_ports(3)))}"
        started = time.perf_counter()
        done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=HEAL_S)
    is_refused = done.returncode == 1 and "open files" in done.stderr
    return {"start_refused": is_refused, "refused_s": time.perf_counter() - started}


@contextmanager
def _limit(count: int) -> Iterator[None]:
    """Limits the open files of child processes that start in the block."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (count, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
