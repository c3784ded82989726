"""A supervised server of a fleet: its ports and process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress

from serving.proxy.settings import Backend
from serving.running import answers, end, is_taken, spawn

SERVICES = ("http", "grpc", "metrics", "supervisor", "health")
PORTS_EACH = 10
STOP_S = 8.0  # a supervisor ends within 6 s
ASK_S = 2.0
DEVICES = "CUDA_VISIBLE_DEVICES"


def share(cores: Sequence[int], index: int, count: int) -> set[int]:
    """The cores of server `index`; all if there are fewer cores than servers.

    ONNX Runtime's threads wait busily: on shared cores servers slow one another.
    """
    if len(cores) < count:
        return set(cores)
    return set(cores[index * len(cores) // count : (index + 1) * len(cores) // count])


class Member:
    """`first_port`: of the fleet; `cores`: of this server; `devices`: GPUs to spread over."""

    def __init__(
        self,
        index: int,
        first_port: int,
        arguments: Sequence[str],
        cores: set[int],
        devices: Sequence[str],
    ) -> None:
        first = first_port + PORTS_EACH * index
        self.index, self.starts, self._cores = index, 0, cores
        self.ports = {service: first + number for number, service in enumerate(SERVICES)}
        self._command = [sys.executable, "-m", "serving.serve", "--supervised", *arguments]
        self._command += [f"--{service}-port={port}" for service, port in self.ports.items()]
        self.devices = devices[index % len(devices)] if devices else None
        self._next_start_s = 0.0
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def backend(self) -> Backend:
        return Backend("127.0.0.1", self.ports["http"], self.ports["grpc"], self.ports["health"])

    def has_free_ports(self) -> bool:
        """Another server's answers would pass for this server's."""
        return not any(is_taken(f"127.0.0.1:{port}") for port in self.ports.values())

    def start(self) -> None:
        """In its own session: the fleet takes Ctrl-C and drains first."""
        self.process = spawn(self._command, environment={} if self.devices is None else {DEVICES: self.devices})
        with suppress(ProcessLookupError):
            os.sched_setaffinity(self.process.pid, self._cores)  # its children inherit them
        self.starts += 1

    def revive(self) -> bool:
        """At most once in 5 s."""
        if self.process is None or self.process.poll() is None:
            return False
        if time.monotonic() < self._next_start_s:
            return False
        self._next_start_s = time.monotonic() + 5.0
        self.start()
        return True

    def right(self) -> bool:
        """Every served version passed its last probe."""
        return answers(f"127.0.0.1:{self.ports['health']}", timeout_s=ASK_S)

    def terminate(self) -> None:
        if self.process is not None:
            with suppress(ProcessLookupError):
                self.process.send_signal(signal.SIGTERM)

    def wait(self) -> None:
        if self.process is not None:
            end(self.process, STOP_S)
