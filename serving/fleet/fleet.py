"""`vitbn serve --servers N`: N supervised servers behind one proxy on this machine.

In: Triton's arguments; its addresses and ports become the proxy's. Out: the proxy answers until SIGTERM or SIGINT, then
exit code 0. Operation: deploy/README.md, "One machine, several servers".
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, Gauge, start_http_server

from serving.arguments import parse, port_of, split
from serving.fleet.member import DEVICES, STOP_S, Member, share
from serving.proxy.files import ProxyError
from serving.proxy.process import DRAIN_S, Proxy
from serving.proxy.settings import ANSWER_S, Settings, TlsFiles
from serving.signals import Signals, Stopping

FIRST_PORT = 8100
START_S = 180.0
PLACES = ("--http-port", "--grpc-port", "--http-address")  # of the proxy
OWN = ("--grpc-address", "--metrics-port", "--metrics-address")


class NotInTime(Exception):
    pass


class Fleet:
    """Raises OSError for a taken `own_port`, of its metrics."""

    def __init__(self, members: Sequence[Member], proxy: Proxy, own_port: int) -> None:
        self._members, self._proxy = members, proxy
        self._signals = Signals()
        registry = CollectorRegistry()
        starts = Gauge("vitbn_fleet_server_starts", "Starts of a supervisor", ["server"], registry=registry)
        for member in self._members:
            starts.labels(str(member.index)).set_function(partial(getattr, member, "starts"))
        self._rolls = Counter("vitbn_fleet_rolls", "Restarts of all servers", ["job", "result"], registry=registry)
        start_http_server(own_port, addr="127.0.0.1", registry=registry)

    def listen(self) -> None:
        self._signals.listen()

    def run(self) -> int:
        try:
            for member in self._members:
                first, *_, last = sorted(member.ports.values())
                self._wait(member.has_free_ports, STOP_S, f"free ports {first} to {last} for server {member.index}")
            self._proxy.start()
            self._proxy.wait_until_ready()
            for member in self._members:
                member.start()
            self._wait(lambda: self._healthy() > 0, START_S, "a server that answers right")
            say(f"the proxy answers at {self._proxy.settings.host}, ports {self._proxy.settings.ports}")
            while True:
                self._tick()
                if self._signals.restart.is_set():
                    self._signals.restart.clear()
                    self._restart_all()
        except Stopping:
            say("stopping")
            return 0
        except (NotInTime, ProxyError) as error:
            say(str(error))
            return 1
        finally:
            self._end()

    def _restart_all(self) -> None:
        """At most one server is drained."""
        say("restart: begins")
        result = "done"
        try:
            for member in self._members:
                self._restart_one(member)
        except NotInTime as error:
            result = f"failed: {error}"
        self._rolls.labels("restart", result.partition(":")[0]).inc()
        say(f"restart: {result}")

    def _restart_one(self, member: Member) -> None:
        count = len(self._members)
        self._wait(lambda: self._healthy() == count, START_S, f"{count} servers that answer right")
        self._proxy.set_draining(member.index, True)
        try:
            self._wait(lambda: self._healthy() < count, START_S, "the proxy to drain a server")
            self._pause(DRAIN_S)
            with suppress(NotInTime):  # a request may not take longer than ANSWER_S
                self._wait(lambda: self._idle(member), ANSWER_S, "")
            member.terminate()
            member.wait()
            member.start()
            self._wait(member.right, START_S, f"server {member.index} to answer right")
        finally:
            self._proxy.set_draining(member.index, False)
        self._wait(lambda: self._healthy() == count, START_S, f"{count} servers that answer right")

    def _healthy(self) -> int:
        with suppress(OSError, ValueError):
            return self._proxy.healthy()
        return 0

    def _idle(self, member: Member) -> bool:
        with suppress(OSError, ValueError):
            return not self._proxy.in_flight(member.ports["http"], member.ports["grpc"])
        return False

    def _tick(self) -> None:
        self._signals.tick()
        for member in self._members:
            if member.revive():
                say(f"server {member.index} had ended: started again")
        if self._proxy.revive():
            say("the proxy had ended or hung: started again")

    def _pause(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self._tick()

    def _wait(self, condition: Callable[[], bool], seconds: float, what: str) -> None:
        until = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > until:
                raise NotInTime(f"expected {what} within {seconds:g} s")
            self._tick()

    def _end(self) -> None:
        self._proxy.finish()
        for member in self._members:
            member.terminate()
        for member in self._members:
            member.wait()
        self._proxy.stop()


def say(text: str) -> None:
    print(f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime())}Z fleet: {text}", file=sys.stderr, flush=True)


def serve_fleet(
    count: int,
    arguments: Sequence[str],
    first_port: int,
    own_port: int,
    keys: Mapping[str, str],
    tls: TlsFiles | None,
) -> int:
    """`own_port`: metrics of the fleet; `own_port` + 1: Envoy's administration. Raises ValueError."""
    places, rest = split(arguments, PLACES + OWN)
    parse(rest)
    devices = [each for each in os.environ.get(DEVICES, "").split(",") if each]
    cores = sorted(os.sched_getaffinity(0))
    members = [Member(index, first_port, rest, share(cores, index, count), devices) for index in range(count)]
    settings = Settings(
        [each.backend for each in members],
        host=["127.0.0.1", *places["--http-address"]][-1],
        ports=(port_of(places, "http"), port_of(places, "grpc")),
        admin=own_port + 1,
        tls=tls,
        keys=keys,
    )
    with tempfile.TemporaryDirectory(prefix="fleet-") as folder:
        try:
            fleet = Fleet(members, Proxy(settings, Path(folder), Path(folder, "envoy.log")), own_port)
        except ProxyError as error:
            raise ValueError(str(error)) from error
        except OSError as error:
            raise ValueError(f"port {own_port} of the fleet: {error.strerror}") from error
        fleet.listen()
        return fleet.run()
