"""`vitbn serve --servers N`: N supervised servers behind one proxy on this machine.

In: Triton's arguments, whose addresses and ports become the proxy's. Out: the proxy answers until SIGTERM or SIGINT,
then exit code 0. How to operate a fleet: deploy/README.md, "One machine, several servers".
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, Gauge, start_http_server

from common.files import swept_folder
from serving.child import Child
from serving.parse_triton_arguments import Arguments, without
from serving.ports import answers, taken
from serving.proxy.envoy_config import ProxyError
from serving.proxy.envoy_process import DRAIN_S, Proxy
from serving.proxy.settings import ANSWER_S, Backend, Settings, TlsFiles
from serving.signal_loop import Loop, NotInTime, Stopping, say

FIRST_PORT = 8100
SERVICES = ("http", "grpc", "metrics", "supervisor", "health")
PORTS_EACH = 10
HEALTH_S = 2.0  # for the answer of a health check
DEVICES = "CUDA_VISIBLE_DEVICES"
START_S = 180.0
PROXY_OPTIONS = ("--http-port", "--grpc-port", "--http-address")  # the user sets them for the proxy
DROPPED_OPTIONS = ("--grpc-address", "--metrics-port", "--metrics-address")  # each server gets values from the fleet
log = partial(say, "fleet")


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


class Fleet(Loop):
    """The servers and the proxy before them. Raises OSError if `metrics_port`, for the fleet's metrics, is taken."""

    def __init__(self, members: Sequence[Member], proxy: Proxy, metrics_port: int) -> None:
        super().__init__()
        self._members, self._proxy = members, proxy
        registry = CollectorRegistry()
        starts = Gauge("vitbn_fleet_server_starts", "Starts of a supervisor", ["server"], registry=registry)
        for member in self._members:
            starts.labels(str(member.index)).set_function(partial(getattr, member, "starts"))
        self._rolls = Counter("vitbn_fleet_rolls", "Restarts of all servers", ["job", "result"], registry=registry)
        start_http_server(metrics_port, addr="127.0.0.1", registry=registry)

    def run(self) -> int:
        """Starts proxy and servers, and keeps them running until a signal. Returns the exit code."""
        try:
            for member in self._members:
                first, *_, last = sorted(member.ports.values())
                self.wait(
                    member.has_free_ports, member.grace_s, f"free ports {first} to {last} for server {member.index}"
                )
            self._proxy.start()
            self._proxy.wait_until_live()
            for member in self._members:
                member.start()
            self.wait(lambda: self._proxy.healthy() > 0, START_S, "a server that answers right")
            settings = self._proxy.settings
            log(f"the proxy answers at {settings.host}, ports {' and '.join(map(str, settings.ports))}")
            while True:
                self.tick()
                if self.restart.is_set():
                    self.restart.clear()
                    self._restart_all()
        except Stopping:
            log("stopping")
            return 0
        except (NotInTime, ProxyError, OSError) as error:
            log(str(error))
            return 1
        finally:
            self._stop_all()

    def _restart_all(self) -> None:
        """Restarts the servers one after the other, so that the others answer meanwhile."""
        log("restart: begins")
        result = "done"
        try:
            for member in self._members:
                self._restart_one(member)
        except (NotInTime, OSError) as error:  # an OSError such as a full disk
            result = f"failed: {error}"
        self._rolls.labels("restart", result.partition(":")[0]).inc()
        log(f"restart: {result}")

    def _restart_one(self, member: Member) -> None:
        """Drains and restarts a server. Raises NotInTime if servers do not become healthy."""
        count = len(self._members)
        self.wait(lambda: self._proxy.healthy() == count, START_S, f"{count} servers that answer right")
        self._proxy.set_draining(member.index, True)
        try:
            self.wait(lambda: self._proxy.healthy() < count, START_S, "the proxy to drain a server")
            self.pause(DRAIN_S)
            with suppress(NotInTime):  # the proxy ends a request after ANSWER_S anyway
                self.wait(lambda: self._proxy.is_idle(member.ports["http"], member.ports["grpc"]), ANSWER_S, "")
            member.stop()
            member.start()
            self.wait(member.is_healthy, START_S, f"server {member.index} to answer right")
        finally:
            self._proxy.set_draining(member.index, False)
        self.wait(lambda: self._proxy.healthy() == count, START_S, f"{count} servers that answer right")

    def tick(self) -> None:
        """Starts ended servers again, and the proxy if it has ended or hangs. Raises Stopping."""
        super().tick()
        for member in self._members:
            if member.revive():
                log(f"server {member.index} had ended: started again")
        if self._proxy.revive():
            log("the proxy had ended or hung: started again")

    def _stop_all(self) -> None:
        self._proxy.finish()
        for member in self._members:
            member.terminate()
        for member in self._members:
            member.stop()
        self._proxy.stop()


def serve_fleet(
    count: int,
    words: Sequence[str],
    first_port: int,
    metrics_port: int,
    keys: Mapping[str, str],
    tls: TlsFiles | None,
) -> int:
    """Runs `count` servers behind a proxy. Returns the exit code. Raises ValueError.

    words:        Triton's arguments.
    first_port:   the first of the servers' ports, PORTS_EACH per server.
    metrics_port: the fleet's metrics; Envoy's administration is at the next port.
    keys:         client -> API key; without keys everybody may send requests.
    """
    given, server_words = Arguments(words), without(words, PROXY_OPTIONS + DROPPED_OPTIONS)
    Arguments(server_words).check_supervised()
    devices = [device for device in os.environ.get(DEVICES, "").split(",") if device]
    cores = sorted(os.sched_getaffinity(0))
    members = [Member(index, first_port, server_words, share(cores, index, count), devices) for index in range(count)]
    settings = Settings(
        [member.backend for member in members],
        host=given.address("http"),
        ports=(given.port("http"), given.port("grpc")),
        admin=metrics_port + 1,
        tls=tls,
        keys=keys,
    )
    with swept_folder(Path(tempfile.gettempdir()), "vitbn-fleet-") as folder:  # with the keys
        proxy = Proxy(settings, folder, folder / "envoy.log")
        try:
            fleet = Fleet(members, proxy, metrics_port)
        except OSError as error:
            raise ValueError(
                f"port {metrics_port} for the fleet's metrics: {error.strerror}; give another --supervisor-port"
            ) from error
        fleet.listen()
        return fleet.run()
