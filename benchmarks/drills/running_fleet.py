"""A fleet, `vitbn serve --servers 2`, that runs during a `with` block, on free loopback ports."""

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

from benchmarks.drills.drill_setup import RELOADED, triton_of
from benchmarks.drills.hostile_requests import send
from clients.probing.server_probe import probe_server
from serving.child import Child, ChildFailed
from serving.fleet import PORTS_EACH, SERVICES
from serving.local_server import ServerFailed
from serving.ports import answers, free_ports
from serving.stub_processes import ServerProcesses

SERVERS = 2
START_S, STOP_S = 120.0, 30.0
SAME_LOAD_S = 1.5  # the stubs of a load start within this time
FIRST_PORTS, ATTEMPTS = (10_000, 30_000), 50  # below the ports that Linux gives to outgoing connections


@dataclass(frozen=True)
class RunningFleet:
    """`http_url`, `grpc_url`: of the proxy. `metrics_url`: of the fleet. `admin_url`: the proxy's administration.

    `first_port`: of the first server. Every server has PORTS_EACH ports, one after the other.
    """

    child: Child
    repository: Path
    first_port: int
    log_path: Path
    http_url: str
    grpc_url: str
    metrics_url: str
    admin_url: str

    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def server_url(self, index: int, service: str = "http") -> str:
        return f"127.0.0.1:{self.first_port + PORTS_EACH * index + SERVICES.index(service)}"

    def supervisors(self) -> list[psutil.Process]:
        """The supervisors, in the order of their servers: sorted by port, which is their last argument."""
        supervisors: dict[str, psutil.Process] = {}
        for child in psutil.Process(self.child.pid).children():
            with suppress(psutil.NoSuchProcess):  # the child has just ended
                command = child.cmdline()
                if "--supervised" in command:
                    supervisors[command[-1]] = child
        return [supervisors[argument] for argument in sorted(supervisors)]

    def triton(self, index: int) -> psutil.Process:
        return triton_of(self.supervisors()[index])

    def stub(self, index: int) -> psutil.Process:
        """The first stub of the newest load. The stubs of an older load live for some seconds longer."""
        stubs = ServerProcesses(self.triton(index).pid).model_stubs()
        started = {stub.process: stub.process.create_time() for stub in stubs}
        newest = max(started.values()) - SAME_LOAD_S
        return next(process for process, at_s in started.items() if at_s > newest)

    def right(self) -> bool:
        """Whether both servers answer correctly, and the proxy counts both as healthy."""
        probes = (probe_server(self.server_url(index), timeout_s=5) for index in range(SERVERS))
        return all(probe.ok for probe in probes) and self._all_healthy_at_the_proxy()

    def _all_healthy_at_the_proxy(self) -> bool:
        with suppress(OSError, HTTPException):
            _, stats = send(self.admin_url, "GET", "/stats?filter=^cluster.(http|grpc).membership_healthy$")
            return [int(line.split()[-1]) for line in stats.splitlines()] == [SERVERS, SERVERS]
        return False

    def restart(self) -> None:
        """Sends SIGHUP, after which the fleet restarts its servers one after the other."""
        os.kill(self.child.pid, signal.SIGHUP)

    def restarts(self) -> int:
        """How many finished restarts the log shows."""
        return self.log().count("fleet: restart: done")

    def reloads(self) -> int:
        """How many reloads the log shows."""
        return self.log().count(RELOADED)


@contextmanager
def running_fleet(repository: Path) -> Iterator[RunningFleet]:
    """A fleet of two servers. Raises ServerFailed."""
    with tempfile.TemporaryDirectory(prefix="fleet-") as folder:
        first, (http, grpc) = _free_block(SERVERS), free_ports(2)
        supervisor_port = first + PORTS_EACH * SERVERS  # the proxy's administration has the next port
        command = [sys.executable, "-m", "serving.serve", f"--servers={SERVERS}", f"--first-port={first}"]
        command += [f"--supervisor-port={supervisor_port}", f"--http-port={http}", f"--grpc-port={grpc}"]
        log_path = Path(folder, "fleet.log")
        child = Child([*command, f"--model-repository={repository}"], log_path)
        child.start()
        ports = {"http": http, "grpc": grpc, "metrics": supervisor_port, "admin": supervisor_port + 1}
        urls = {f"{service}_url": f"127.0.0.1:{port}" for service, port in ports.items()}
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
    """The first of enough free ports in a row for `count` servers and the fleet. Raises ServerFailed."""
    for _ in range(ATTEMPTS):
        first = random.randrange(*FIRST_PORTS)
        with suppress(OSError), ExitStack() as stack:
            for port in range(first, first + PORTS_EACH * count + 2):
                stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
            return first
    raise ServerFailed(f"expected {PORTS_EACH * count + 2} free ports in a row, found none")
