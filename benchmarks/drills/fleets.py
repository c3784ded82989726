"""`vitbn serve --servers 2` for a `with` block, on free loopback ports."""

from __future__ import annotations

import os
import random
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path

import psutil

from benchmarks.drills.drill_bench import RELOADED, triton_of
from benchmarks.drills.hostile_requests import send
from clients.probing.asking import probe_server
from serving.child import Child, ChildFailed
from serving.fleet.member import PORTS_EACH, SERVICES
from serving.local_server import ServerFailed
from serving.ports import answers, free_ports
from serving.processes import ServerProcesses

SERVERS = 2
START_S, STOP_S = 120.0, 30.0
TOGETHER_S = 1.5  # the stubs of one load start within this time
BLOCKS, ATTEMPTS = (10_000, 30_000), 50  # first ports, below those that Linux gives to connections


@dataclass(frozen=True)
class RunningFleet:
    """`own_url`: the fleet's metrics; `admin_url`: the proxy's administration."""

    child: Child
    repository: Path
    first_port: int
    log_path: Path
    http_url: str
    grpc_url: str
    own_url: str
    admin_url: str

    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def server_url(self, index: int, service: str = "http") -> str:
        return f"127.0.0.1:{self.first_port + PORTS_EACH * index + SERVICES.index(service)}"

    def supervisors(self) -> list[psutil.Process]:
        """The supervisor of each server, in the servers' order."""
        members = []
        for child in psutil.Process(self.child.pid).children():
            with suppress(psutil.NoSuchProcess):  # the child has just ended
                words = child.cmdline()
                members += [(words[-1], child)] if "--supervised" in words else []
        return [child for _, child in sorted(members, key=lambda each: each[0])]

    def triton(self, index: int) -> psutil.Process:
        return triton_of(self.supervisors()[index])

    def stub(self, index: int) -> psutil.Process:
        """The first stub of the newest load: replaced stubs live for seconds longer."""
        started = {
            stub.process: stub.process.create_time() for stub in ServerProcesses(self.triton(index).pid).model_stubs()
        }
        newest = max(started.values()) - TOGETHER_S
        return next(process for process, at_s in started.items() if at_s > newest)

    def right(self) -> bool:
        """Whether both servers answer right, and the proxy counts both as healthy."""
        probed = (probe_server(self.server_url(index), timeout_s=5) for index in range(SERVERS))
        return all(each.ok for each in probed) and self._full()

    def _full(self) -> bool:
        with suppress(OSError, HTTPException):
            _, told = send(self.admin_url, "GET", "/stats?filter=^cluster.(http|grpc).membership_healthy$")
            return [int(line.split()[-1]) for line in told.splitlines()] == [SERVERS, SERVERS]
        return False

    def restart(self) -> None:
        os.kill(self.child.pid, signal.SIGHUP)

    def restarts(self) -> int:
        return self.log().count("fleet: restart: done")

    def reloads(self) -> int:
        return self.log().count(RELOADED)


@contextmanager
def running_fleet(repository: Path) -> Iterator[RunningFleet]:
    """A fleet of two servers. Raises ServerFailed."""
    with tempfile.TemporaryDirectory(prefix="fleet-") as folder:
        first, (http, grpc) = _free_block(SERVERS), free_ports(2)
        own = first + PORTS_EACH * SERVERS
        command = [sys.executable, "-m", "serving.serve", f"--servers={SERVERS}", f"--first-port={first}"]
        command += [f"--supervisor-port={own}", f"--http-port={http}", f"--grpc-port={grpc}"]
        log_path = Path(folder, "fleet.log")
        child = Child([*command, f"--model-repository={repository}"], log_path)
        child.start()
        services = {"http": http, "grpc": grpc, "own": own, "admin": own + 1}
        urls = {f"{service}_url": f"127.0.0.1:{port}" for service, port in services.items()}
        fleet = RunningFleet(child, repository, first, log_path, **urls)
        health = [fleet.server_url(index, "health") for index in range(SERVERS)]
        try:
            child.wait_until_ready(lambda: all(map(answers, health)) and answers(fleet.admin_url, "ready"), START_S)
            time.sleep(1.0)  # two health checks of the proxy
            yield fleet
        except ChildFailed as failure:
            raise ServerFailed(f"the fleet {failure}: {fleet.log()[-1000:]}") from failure
        finally:
            child.stop(STOP_S)


def _free_block(count: int) -> int:
    for _ in range(ATTEMPTS):
        first = random.randrange(*BLOCKS)
        with suppress(OSError), ExitStack() as stack:
            for port in range(first, first + PORTS_EACH * count + 2):
                stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
            return first
    raise ServerFailed(f"expected {PORTS_EACH * count + 2} free ports in a row, found none")
