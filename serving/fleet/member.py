"""A supervised server of a fleet: its ports, cores and GPU, and its supervisor as a child process."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress

from serving.child import Child
from serving.ports import answers, taken
from serving.proxy.settings import Backend

SERVICES = ("http", "grpc", "metrics", "supervisor", "health")
PORTS_EACH = 10
HEALTH_S = 2.0  # for the answer of a health check
DEVICES = "CUDA_VISIBLE_DEVICES"


def share(cores: Sequence[int], index: int, count: int) -> set[int]:
    """The cores of server `index` of `count`; all cores if there are fewer cores than servers.

    ONNX Runtime's threads wait busily, so servers on the same cores slow one another.
    """
    if len(cores) < count:
        return set(cores)
    return set(cores[index * len(cores) // count : (index + 1) * len(cores) // count])


class Member(Child):
    """A supervised server as a child process.

    index:      the server's number in the fleet, from 0.
    first_port: the first port of the fleet.
    arguments:  Triton's, without ports.
    cores:      the cores of this server.
    devices:    the GPUs over which all servers are spread; empty: no choice.
    """

    grace_s = 8.0  # a supervisor ends within 6 s
    pause_s = 5.0

    def __init__(
        self,
        index: int,
        first_port: int,
        arguments: Sequence[str],
        cores: set[int],
        devices: Sequence[str],
    ) -> None:
        first = first_port + PORTS_EACH * index
        self.index, self._cores = index, cores
        self.ports = {service: first + number for number, service in enumerate(SERVICES)}
        self.devices = devices[index % len(devices)] if devices else None
        command = [sys.executable, "-m", "serving.serve", "--supervised", *arguments]
        command += [f"--{service}-port={port}" for service, port in self.ports.items()]
        super().__init__(command, environment={} if self.devices is None else {DEVICES: self.devices})

    @property
    def backend(self) -> Backend:
        return Backend("127.0.0.1", self.ports["http"], self.ports["grpc"], self.ports["health"])

    def has_free_ports(self) -> bool:
        """Whether all its ports are free: at a taken port another server's answers would be taken for this server's."""
        return not taken(f"127.0.0.1:{port}" for port in self.ports.values())

    def start(self) -> None:
        super().start()
        with suppress(ProcessLookupError):
            os.sched_setaffinity(self.pid, self._cores)  # the server and its stubs inherit them

    def is_healthy(self) -> bool:
        """Whether every served version passed its last probe."""
        return answers(f"127.0.0.1:{self.ports['health']}", timeout_s=HEALTH_S)
