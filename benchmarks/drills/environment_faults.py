"""Faults that a supervisor must not make worse: a full disk, a jumping clock, a slow prober, a second supervisor, no
home folder, few file descriptors; and a fault every 20 s for ten minutes.

In: a `DrillBench`. Out: a row of counts of requests, and what the supervisor did. Clients do not retry.
"""

from __future__ import annotations

import http.client
import os
import resource
import shlex
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from itertools import cycle
from pathlib import Path

import numpy as np
import psutil

from benchmarks.drills.drill_setup import (
    HEAL_S,
    MODEL,
    RESTARTED,
    DrillBench,
    lives,
    prober,
    stubs,
    supervisor_actions,
    supervisor_command,
    triton,
    wait_until,
    wait_until_right,
)
from benchmarks.measure.result_file import Row
from clients.probing.server_probe import probe_server
from serving.child import Child
from serving.local_server import Server
from serving.model_control_client import Control
from serving.ports import answers, free_ports

SETTLE_S = 3.0
STANDSTILLS_S = (3.0, 3.0, 3.0)
FAKETIME = Path("/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1")
# While libfaketime 0.9.10 leaves the monotonic clock alone, Python's time.sleep fails.
SLEEP = "import threading, time\ntime.sleep = lambda seconds: threading.Event().wait(seconds)\n"
BLOCKED = "expected a free port"  # in the log of a supervisor whose port another process has
DISK_BYTES, LEFT_BYTES = 64 * 2**20, 64 * 2**10
MINUTES, FAULT_EVERY_S, PAUSE_S = 10.0, 20.0, 0.02
TOO_FEW, FEW = 64, 160  # descriptors with which the server refuses to start, and with which it starts
IDLE_CONNECTIONS, HELD_S = 200, 5.0


def disk_full(bench: DrillBench) -> Row:
    """The repository's disk is full while a version is written and the server loads the model."""
    from export.publishing.artifact import read_version
    from export.publishing.publish import publish

    with bench.repository() as source, _small_disk(source.parent / "disk") as disk:
        if disk is None:
            return {"left_out": "only root may mount a small disk"}
        subprocess.run(["cp", "-r", source, disk / "models"], check=True)
        repository = disk / "models"
        artifact = read_version(repository / MODEL / "1")
        with bench.server(repository) as server, bench.traffic(server) as verdicts:
            control = Control.at(server.http_url, server.grpc_url)
            filler = disk / "filler"
            free = os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize
            filler.write_bytes(bytes(free - LEFT_BYTES))
            refusal = ""
            try:
                publish(repository, MODEL, artifact)
            except Exception as error:  # the publisher's message is part of the row
                refusal = f"{type(error).__name__}: {error}"[:100]
            control.load(MODEL)
            versions = sorted(path.name for path in (repository / MODEL).iterdir() if path.name.isdigit())
            filler.unlink()
            publish(repository, MODEL, artifact)
            control.load(MODEL)
            time.sleep(SETTLE_S)
            served, actions = control.served()[MODEL], supervisor_actions(server)
        return {**verdicts.row(), "refusal": refusal, "versions_when_full": versions, "served": served, **actions}


@contextmanager
def _small_disk(folder: Path) -> Iterator[Path | None]:
    """A file system of DISK_BYTES at `folder`; None if this user may not mount it."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(folder)]
    if os.geteuid() or subprocess.run(command, capture_output=True).returncode:
        yield None
        return
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def clock_jump(bench: DrillBench) -> Row:
    """The wall clock of server and supervisor jumps forward by an hour, then back."""
    if not FAKETIME.exists():
        return {"left_out": f"{FAKETIME} is missing: apt-get install libfaketime"}
    with bench.repository() as repository, ExitStack() as stack:
        offset = repository.parent / "offset"
        offset.write_text("+0")
        variables = {"LD_PRELOAD": str(FAKETIME), "FAKETIME_TIMESTAMP_FILE": str(offset), "FAKETIME_NO_CACHE": "1"}
        variables["PYTHONPATH"] = os.pathsep.join([str(offset.parent), os.environ.get("PYTHONPATH", "")])
        (offset.parent / "sitecustomize.py").write_text(SLEEP)
        before = dict(os.environ)
        try:
            os.environ |= variables | {"FAKETIME_DONT_FAKE_MONOTONIC": "1"}
            server = stack.enter_context(bench.server(repository))
        finally:
            os.environ.clear()
            os.environ |= before
        with bench.traffic(server) as verdicts:
            hours = list[str]()
            wait_until(lambda: answers(server.health_url))
            for text in ("+3600", "+0"):
                offset.write_text(text)
                time.sleep(2 * SETTLE_S)
                hours.append(_hour(server))
        actions, process = supervisor_actions(server), psutil.Process(server.pid)
        stack.close()
        return {**verdicts.row(), **actions, "stopped": not process.is_running(), "jumped": hours[0] != hours[1]}


def _hour(server: Server) -> str:
    """The hour in an answer of the supervisor's prober, so by the clock of the supervisor's children."""
    with closing(http.client.HTTPConnection(server.health_url, timeout=HEAL_S)) as connection:
        connection.request("GET", "/")
        return connection.getresponse().headers["Date"][17:19]


def slow_probe(bench: DrillBench) -> Row:
    """The prober is suspended for some seconds three times, and then until the supervisor has replaced it."""
    with bench.server() as server, bench.traffic(server, PAUSE_S) as verdicts:
        first = prober(server)
        for seconds in STANDSTILLS_S:
            first.suspend()
            time.sleep(seconds)
            first.resume()
            time.sleep(1.0)
        first.suspend()
        wait_until(lambda: not first.is_running())
        prober(server)
        return {**verdicts.row(), **supervisor_actions(server)}


def two_supervisors(bench: DrillBench) -> Row:
    """A second supervisor serves the same repository. A third is started with the ports of the first."""
    with bench.repository() as repository, bench.server(repository) as server, bench.traffic(server) as verdicts:
        with bench.server(repository) as second:
            actions_of_second = supervisor_actions(second)
        urls = (server.http_url, server.grpc_url, server.metrics_url)
        log_path = repository.parent / "third.log"
        third = Child(supervisor_command(repository, [int(url.split(":")[1]) for url in urls]), log_path)
        third.start()
        try:
            wait_until(lambda: not third.alive() or BLOCKED in log_path.read_text())
        finally:
            third.stop(HEAL_S)
        log = log_path.read_text()
        right = probe_server(server.http_url, timeout_s=5).ok
        return {
            **{**verdicts.row(), **supervisor_actions(server)},
            "second_restarts": actions_of_second["restarts"],
            "third_blocked": BLOCKED in log and RESTARTED not in log,
            "right_at_the_end": right,
        }


def many_faults(bench: DrillBench) -> Row:
    """A fault every 20 s for ten minutes.

    `memory_mb_by_quarter`: of supervisor, server and their children, the median of each quarter of the time.
    """
    faults: Sequence[Callable[[Server], object]] = (
        lambda server: stubs(server)[0].kill(),
        lambda server: stubs(server)[0].suspend(),
        lambda server: prober(server).kill(),
        lambda server: triton(server).kill(),
        lambda server: stubs(server)[0].kill(),
    )
    memory_mb, family, count = list[float](), set[psutil.Process](), 0
    with bench.server() as server, bench.traffic(server, PAUSE_S) as verdicts:
        ends, process = time.monotonic() + 60 * MINUTES, psutil.Process(server.pid)
        for fault in cycle(faults):
            if time.monotonic() > ends:
                break
            with suppress(psutil.Error, StopIteration, IndexError):  # the last fault is not repaired yet
                fault(server)
                count += 1
            due = time.monotonic() + FAULT_EVERY_S
            while time.monotonic() < due:
                with suppress(psutil.Error):
                    members = [process, *process.children(recursive=True)]
                    family |= {*members}
                    memory_mb.append(sum(member.memory_info().rss for member in members) / 1e6)
                time.sleep(1.0)
        wait_until_right(server)
        actions = supervisor_actions(server)
    orphans = sum(map(lives, family))
    medians = [float(np.median(quarter)) for quarter in np.array_split(np.array(memory_mb), 4)]
    return {**verdicts.row(), "faults": count, **actions, "orphans": orphans, "memory_mb_by_quarter": medians}


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
