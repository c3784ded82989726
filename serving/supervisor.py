"""`vitbn serve --supervised`: keeps a server answering right. The loop: start, probe, heal, stop.

In: Triton's arguments. Out: every model's newest intact versions are served until SIGTERM or SIGINT, then exit code 0;
exit code 1 after too many restarts. The rules of healing: triton_repo/README.md, Supervise.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

from serving import control_key, restricted_api
from serving.events import Events
from serving.healing import Judge, ServerLost, Sick
from serving.intact_versions import Plan
from serving.model_control_client import Control, ControlFailed, NotReady, Unreachable
from serving.parse_triton_arguments import Arguments
from serving.ports import taken
from serving.prober import Failure, Prober, Verdict
from serving.signal_loop import Loop, NotInTime, Result, Stopping
from serving.stub_processes import Stub
from serving.triton_server import StartRefused, TritonServer
from serving.version_selection import Versions
from serving.watch_loading_stubs import LoadWatch, lost_process

START_S, LOAD_S, RELOAD_S = 180.0, 120.0, 20.0
STOP_S = 4.5  # longer than Triton's --exit-timeout-secs
END_S = 1.5  # for a server that has failed
PORTS_S = 5.0  # a server whose supervisor was killed frees its ports within this time
LOOK_S = 0.5  # between two looks at the stubs
# Triton ends a model's old stubs after a load, except Triton 2.51 after the death of a stub: these are killed after
REPLACED_S = 5.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 30.0
RESTARTS, RESTARTS_WITHIN_S = 10, 600.0
METRICS_PORT = 8003


class Restarting(Stopping):
    """SIGHUP asked for a new server."""


class GivesUp(Exception):
    """The message says why no further server is started."""


class Supervisor(Loop):
    """Runs one server after the other.

    key:         the key of the control interface, which is stored for `ports`.
    health_port: the port at which the prober answers a proxy's health checks, or None.
    """

    def __init__(
        self, arguments: Arguments, events: Events, key: str, ports: Sequence[int], health_port: int | None = None
    ) -> None:
        super().__init__()
        self._arguments, self._events = arguments, events
        self._control = Control(arguments.http_url, arguments.headers, arguments.grpc_url, arguments.grpc_headers)
        self._prober = Prober(arguments.http_url, arguments.headers, arguments.repositories, health_port)
        self._versions = Versions(arguments, events)
        health_url = f"127.0.0.1:{health_port}" if health_port else None
        urls = (arguments.http_url, arguments.grpc_url, *arguments.listening_urls(), health_url)
        self._urls = [url for url in dict.fromkeys(urls) if url]
        self._key, self._ports = key, ports
        self._failed_starts_s: deque[float] = deque()  # times of starts after which the server never became healthy
        self._healthy = self._ever_healthy = False  # in this run of the server; in any run

    def tick(self) -> None:
        """Waits for TICK_S. Raises Stopping and Restarting."""
        super().tick()
        if self.restart.is_set():
            self.restart.clear()
            raise Restarting

    def _call(
        self, function: Callable[[], Result], seconds: float = LOAD_S, check: Callable[[], object] = lambda: None
    ) -> Result:
        """As `Loop.call`, but raises ControlFailed if `function` takes longer than twice `seconds`."""
        try:
            return self.call(function, 2 * seconds, check)
        except NotInTime as error:
            raise ControlFailed(str(error)) from error

    def _load_model(self, server: TritonServer, name: str, config: str | None, seconds: float) -> None:
        """Loads a model and watches the load's processes. Raises ControlFailed and ServerLost."""
        load = partial(self._control.load, name, config, seconds)
        self._call(load, seconds, LoadWatch(server, self._versions).check)

    def run(self) -> int:
        """Runs servers until a signal or too many restarts. Returns the exit code."""
        while True:
            try:
                self._serve_once()
            except Restarting:
                self._events.say("restarting, as SIGHUP asks; refused versions are tried again")
                self._versions.forget()
                self._failed_starts_s.clear()
            except Stopping:
                self._events.say("stopped")
                return 0
            except GivesUp as reason:
                self._events.gave_up(str(reason))
                return 1

    def _serve_once(self) -> None:
        """Runs a server until it is lost, then pauses. Raises GivesUp and Stopping."""
        self._healthy = False
        try:
            self._serve()
        except ServerLost as lost:
            if isinstance(lost, StartRefused) and not self._ever_healthy:
                raise GivesUp("no start can work") from lost
        except (OSError, RuntimeError) as error:  # this process has no free descriptor, process or thread
            self._events.ended("blocked", str(error))
        self._pause()

    def _pause(self) -> None:
        """Waits longer after each failed start. Raises GivesUp after too many failed starts.

        A start after which the server became healthy does not count: killing the server repeatedly must not end the
        service.
        """
        now = time.monotonic()
        if self._healthy:
            self._failed_starts_s.clear()
        self._failed_starts_s.append(now)
        while now - self._failed_starts_s[0] > RESTARTS_WITHIN_S:
            self._failed_starts_s.popleft()
        count = len(self._failed_starts_s)
        if count > RESTARTS:
            raise GivesUp(f"{RESTARTS} restarts within {RESTARTS_WITHIN_S:g} s were in vain")
        if count > 1:
            pause_s = min(FIRST_PAUSE_S * 2 ** (count - 2), LONGEST_PAUSE_S)
            self._events.say(f"next start in {pause_s:g} s")
            self.pause(pause_s)

    def _serve(self) -> None:
        """Runs a server from its start to its end. Raises ServerLost and Stopping."""
        self._events.forget_plans()
        try:
            self._wait_for_ports()
            self._keep_key()
            plans = self._versions.plans()
        except ServerLost as lost:
            self._events.ended(lost.reason, str(lost))
            raise
        server, grace_s = TritonServer(self._arguments, plans, self._events), END_S
        server.start()
        try:
            self._load(server, plans)
            self._prober.start()
            self._watch(server)
        except Stopping:
            grace_s = STOP_S
            raise
        except ServerLost as lost:
            cause = server.cause(lost)
            self._events.ended(cause.reason, str(cause))
            raise cause from lost
        finally:
            self._prober.stop()
            if server.stop(grace_s) and grace_s == STOP_S:
                self._events.cut_off(server.log.open_at_the_end)

    def _wait_for_ports(self) -> None:
        """Raises ServerLost for a port that stays taken: another server's answers would be taken for this server's."""
        deadline = time.monotonic() + PORTS_S
        while problem := taken(self._urls):
            if time.monotonic() > deadline:
                raise ServerLost("blocked", problem)
            self.tick()

    def _keep_key(self) -> None:
        """Stores the key. Call it when the ports are free: before, their stored keys are another server's."""
        try:
            control_key.keep(self._ports, self._key)
        except control_key.KeyFailed as failure:
            self._events.say(f"warning: {failure}; only this supervisor can change its server")

    def _load(self, server: TritonServer, plans: dict[str, Plan]) -> None:
        """Loads the models that the server did not load at its start. Raises ServerLost."""
        index = self._wait_for_index(server)
        for name, plan in plans.items():
            self._events.planned(name, plan.versions or (), plan.problems)
            ready = {number for number, state in index.get(name, {}).items() if state == "READY"}
            if not plan.versions or ready >= {*plan.versions}:
                continue
            if not plan.differs:  # after a failed load at its start Triton never becomes ready
                self._versions.load_failed(name, plan.versions[-1])
                raise ServerLost("refused", f"model {name}, version {plan.versions[-1]} does not load")
            self._load_newest(server, name, plan)

    def _wait_for_index(self, server: TritonServer) -> dict[str, dict[int, str]]:
        deadline, watch = time.monotonic() + START_S, LoadWatch(server, self._versions)
        while True:
            server.check()
            watch.check()  # from the start: a process that dies before the first look would never be missed
            try:
                return self._control.index()
            except NotReady as error:  # final: Triton could not apply an option, and its log says why
                raise StartRefused("refused", "an option, or what it needs") from error
            except ControlFailed as error:
                if time.monotonic() > deadline:
                    raise ServerLost("hung", f"no index within {START_S:g} s of its start: {error}") from error
            self.tick()

    def _load_newest(self, server: TritonServer, name: str, current: Plan) -> None:
        """Loads the newest versions that Triton accepts. Raises ServerLost."""
        while current.versions:
            try:
                self._load_model(server, name, current.json(), LOAD_S)
                self._versions.loaded(name)
                return
            except Unreachable as error:
                raise ServerLost("failed", f"model {name} does not load: {error}") from error
            except ControlFailed as error:
                self._events.say(f"model {name}: {error}")
                current = self._versions.load_failed(name, current.versions[-1])

    def _watch(self, server: TritonServer) -> None:
        """Probes the server and heals its models. Raises ServerLost once only a new server helps."""
        judge, looked_s, stubs = Judge(), 0.0, list[Stub]()
        replaced: dict[Stub, float] = {}  # old stub of a model that was loaded again -> when to kill it
        while True:
            server.check()
            if time.monotonic() - looked_s > LOOK_S:
                stubs, looked_s = server.stubs(), time.monotonic()
                for stub in [stub for stub, due_s in replaced.items() if due_s < looked_s]:
                    stub.kill()
                    replaced[stub] = math.inf
                for stub in judge.lame(stubs, replaced):
                    state = self._state(stub)
                    if state == "LOADING" or not stub.model:
                        raise lost_process(stub, self._versions)
                    if state in ("UNLOADING", "UNAVAILABLE"):  # its end was intended, and another load may follow
                        replaced[stub] = math.inf
                    if state == "READY":
                        reason = f"version {stub.version} has lost process {stub.process.pid}"
                        replaced |= self._heal(server, judge, Sick(stub.model, reason), stubs)
                        break
            for name in self._versions.due():
                self._load_newest(server, name, self._versions.replan(name))
            verdict = self._prober.verdict()
            if verdict is None:
                self.tick()
                continue
            verdict = self._with_broken_files(judge, verdict)
            self._events.probed(verdict)
            if verdict.ok:
                self._healthy = self._ever_healthy = True
                self._versions.answered(verdict.states)
            for sick in judge.sick(verdict, stubs):
                replaced |= self._heal(server, judge, sick, stubs)

    def _with_broken_files(self, judge: Judge, verdict: Verdict) -> Verdict:
        """Adds a failure for each version whose files differ from their hashes, also if an operator loaded it."""
        failures: list[Failure] = []
        for model, version in self._versions.unchecked(verdict.states):
            judge.is_new(model, version)
            failures += self._call(partial(self._versions.check_files, model, version))  # a large file takes seconds
        return replace(verdict, ok=False, failures=(*verdict.failures, *failures)) if failures else verdict

    def _heal(self, server: TritonServer, judge: Judge, sick: Sick, stubs: Sequence[Stub]) -> dict[Stub, float]:
        """Loads a model again; its old stubs answer until the new stubs are ready. Returns old stub -> when to kill it.

        A model with a wrong version is unloaded first; an older version, if there is any, takes its place. Raises
        ServerLost if only a new server helps.
        """
        name, old_stubs = sick.model, [stub for stub in stubs if stub.model == sick.model]
        slow = sick.slow if self._versions.has_others(name, sick.slow) else {}
        unfit = bool(sick.wrong or sick.broken)
        current = self._versions.replan(name, {**sick.wrong, **slow}) if unfit or slow else self._versions.plan(name)
        if judge.is_healed_in_vain(name) and (current.versions is None or not (unfit or slow)):
            raise ServerLost("failed", f"model {name} is not right after a load: {sick.reason}")
        self._events.reloading(name, sick.reason)
        for stub in old_stubs:
            if stub.stopped:  # a stopped stub would block the unload, and end the server if it continued
                stub.kill()
        self._prober.stop()  # health checks then fail, so a proxy frees the requests that wait for a dead stub
        try:
            if unfit or current.versions == ():
                self._call(partial(self._control.unload, name, RELOAD_S), RELOAD_S)
            if config := current.json(again=True):
                self._load_model(server, name, config, RELOAD_S)
            elif current.versions != ():
                raise ServerLost("failed", f"model {name} {sick.reason}, and its config.pbtxt names no inputs")
        except ControlFailed as error:
            raise ServerLost("failed", f"model {name} does not load again: {error}") from error
        judge.healed(name)
        self._prober.start()
        self._events.say(f"model {name} is {'unloaded' if current.versions == () else 'loaded again'}")
        return dict.fromkeys(old_stubs, time.monotonic() + REPLACED_S)

    def _state(self, stub: Stub) -> str | None:
        """Triton's state of the stub's version; None without an answer."""
        with suppress(ControlFailed):
            return self._control.index().get(stub.model, {}).get(stub.version)
        return None


def supervise(words: Sequence[str], metrics_port: int | None = METRICS_PORT, health_port: int | None = None) -> int:
    """Supervises a server with Triton's arguments until its end. Returns the exit code. Raises ValueError."""
    key = control_key.draw()
    guards = restricted_api.options(Arguments(words), key)
    arguments = Arguments([*guards, *words])
    arguments.check_supervised()
    arguments.check_ports(metrics_port, health_port)
    ports = arguments.control_ports if guards else []
    try:
        events = Events(metrics_port)
    except OSError as error:
        raise ValueError(
            f"port {metrics_port} for the supervisor's metrics: {error.strerror}; give another --supervisor-port"
        ) from error
    supervisor = Supervisor(arguments, events, key, ports, health_port)
    supervisor.listen()
    try:
        return supervisor.run()
    finally:
        control_key.forget(ports, key)
