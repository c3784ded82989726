"""`vitbn serve --servers N`: N supervised servers behind one proxy on this machine.

In: Triton's arguments; its addresses and ports become the proxy's. Out: the proxy answers until SIGTERM or SIGINT, then
exit code 0. Operation: deploy/README.md, "One machine, several servers".
"""

from __future__ import annotations

import os
import queue
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import FrameType

from serving.arguments import parse, port_of, split
from serving.control import ControlFailed
from serving.fleet.api import Api
from serving.fleet.member import DEVICES, STOP_S, Member, share, targets
from serving.proxy.folder import ProxyError
from serving.proxy.process import DRAIN_S, Proxy
from serving.proxy.routes import ANSWER_S
from serving.proxy.settings import GRPC_PORT, HTTP_PORT, Settings, TlsFiles
from serving.waits import TICK_S, Stopping, in_thread

FIRST_PORT, OWN_PORT = 8100, 8003
START_S, LOAD_S = 180.0, 120.0
PLACES = ("--http-port", "--grpc-port", "--http-address")  # of the proxy
OWN = ("--grpc-address", "--metrics-port", "--metrics-address")


@dataclass(frozen=True)
class Access:
    keys: Mapping[str, str] = field(default_factory=dict)
    tls: TlsFiles | None = None


@dataclass(frozen=True)
class Job:
    name: str
    act: Callable[[Member], None]
    done: Future[None]


class Fleet:
    def __init__(
        self, count: int, arguments: Sequence[str], first_port: int, own_port: int, access: Access, folder: Path
    ) -> None:
        """Raises ValueError for bad arguments, ProxyError without Envoy, OSError for a taken port."""
        places, rest = split(arguments, PLACES + OWN)
        options = parse(rest)
        devices = [each for each in os.environ.get(DEVICES, "").split(",") if each]
        cores = sorted(os.sched_getaffinity(0))
        self._members = [
            Member(index, first_port, rest, options.headers, share(cores, index, count), devices)
            for index in range(count)
        ]
        ports = (port_of(places, "http", str(HTTP_PORT)), port_of(places, "grpc", str(GRPC_PORT)))
        settings = Settings(
            [each.backend for each in self._members],
            host=places.get("--http-address", "127.0.0.1"),
            ports=ports,
            admin=own_port + 1,
            tls=access.tls,
            keys=access.keys,
        )
        self._proxy = Proxy(settings, folder, folder / "envoy.log")
        self._jobs: queue.SimpleQueue[Job] = queue.SimpleQueue()  # a signal may interrupt a look at it
        self._stop = threading.Event()
        self._api = Api(own_port, self._members, self.load, lambda: targets(self._members, own_port, settings.admin))

    def signalled(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGHUP:
            self._jobs.put(Job("restart", self._restart, Future()))
        else:
            self._stop.set()

    def load(self, model: str) -> None:
        """Raises ControlFailed at the first refusal. Call it from another thread than `run`."""
        job = Job("load", partial(self._load, model), Future())
        self._jobs.put(job)
        job.done.result()

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
            self._api.say(f"the proxy answers at {self._proxy.settings.host}, ports {self._proxy.settings.ports}")
            while True:
                self._tick()
                with suppress(queue.Empty):
                    self._do(self._jobs.get_nowait())
        except Stopping:
            self._api.say("stopping")
            return 0
        except (ControlFailed, ProxyError) as error:
            self._api.say(str(error))
            return 1
        finally:
            self._end()

    def _do(self, job: Job) -> None:
        """Other jobs wait: at most one server is drained."""
        self._api.say(f"{job.name}: begins")
        try:
            for member in self._members:
                self._in_turn(member, partial(job.act, member))
        except ControlFailed as error:
            self._api.rolled(job.name, f"failed: {error}")
            job.done.set_exception(error)
        except Exception:  # Stopping among them
            job.done.set_exception(ControlFailed("the fleet is stopping"))
            raise
        else:
            self._api.rolled(job.name, "done")
            job.done.set_result(None)

    def _in_turn(self, member: Member, act: Callable[[], None]) -> None:
        count = len(self._members)
        self._wait(lambda: self._healthy() == count, START_S, f"{count} servers that answer right")
        self._proxy.set_draining(member.index, True)
        try:
            self._wait(lambda: self._healthy() < count, START_S, "the proxy to drain a server")
            self._pause(DRAIN_S)
            with suppress(ControlFailed):  # a request may not take longer than ANSWER_S
                self._wait(lambda: self._idle(member), ANSWER_S, "")
            act()
            self._wait(member.right, START_S, f"server {member.index} to answer right")
        finally:
            self._proxy.set_draining(member.index, False)
        self._wait(lambda: self._healthy() == count, START_S, f"{count} servers that answer right")

    def _restart(self, member: Member) -> None:
        member.terminate()
        member.wait()
        member.start()

    def _load(self, model: str, member: Member) -> None:

        def load() -> None:
            try:
                member.control.load(model, None, LOAD_S)
            except ControlFailed as error:
                raise ControlFailed(f"server {member.index}: {error}") from error

        in_thread(load, self._tick)

    def _healthy(self) -> int:
        with suppress(OSError, ValueError):
            return self._proxy.healthy()
        return 0

    def _idle(self, member: Member) -> bool:
        with suppress(OSError, ValueError):
            return not self._proxy.in_flight(member.ports["http"], member.ports["grpc"])
        return False

    def _tick(self) -> None:
        if self._stop.wait(TICK_S):
            raise Stopping
        for member in self._members:
            if member.revive():
                self._api.say(f"server {member.index} had ended: started again")
        if self._proxy.revive():
            self._api.say("the proxy had ended or hung: started again")

    def _pause(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self._tick()

    def _wait(self, condition: Callable[[], bool], seconds: float, what: str) -> None:
        until = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > until:
                raise ControlFailed(f"expected {what} within {seconds:g} s")
            self._tick()

    def _end(self) -> None:
        self._proxy.finish()
        for member in self._members:
            member.terminate()
        for member in self._members:
            member.wait()
        self._proxy.stop()


def serve_fleet(
    count: int,
    arguments: Sequence[str],
    first_port: int = FIRST_PORT,
    own_port: int = OWN_PORT,
    access: Access | None = None,
) -> int:
    with tempfile.TemporaryDirectory(prefix="fleet-") as folder:
        try:
            fleet = Fleet(count, arguments, first_port, own_port, access or Access(), Path(folder))
        except ProxyError as error:
            raise ValueError(str(error)) from error
        except OSError as error:
            raise ValueError(f"port {own_port} of the fleet: {error.strerror}") from error
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, fleet.signalled)
        return fleet.run()
