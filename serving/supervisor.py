"""`vitbn serve --supervised`: keeps a server answering correctly. One loop: start, probe, heal, stop.

In: Triton's arguments. Out: every model's newest whole versions are served until SIGTERM or SIGINT, then exit code 0;
exit code 1 after too many restarts. How it heals: triton_repo/README.md, Supervise.
"""

from __future__ import annotations

import math
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from functools import partial
from types import FrameType

from serving import guarding
from serving import key as control_key
from serving.acts import Acts
from serving.arguments import EXIT_TIMEOUT_S, ServerOptions, parse
from serving.control import Control, ControlFailed
from serving.healing import Judge, ServerLost, Sick
from serving.prober import Prober
from serving.processes import Family, Stub
from serving.running import TAKEN, end, end_of, is_taken, spawn
from serving.whole import Plan, plan

START_S, LOAD_S, RELOAD_S = 180.0, 120.0, 20.0
STOP_S = 4.5  # Triton's own --exit-timeout-secs is below
DEATH_S = 0.5  # between a server's last answer and its exit code
END_S = 1.5  # for a server that has failed
PORTS_S = 5.0  # a server whose supervisor was killed frees its ports meanwhile
LOOK_S = 0.5  # between looks at processes
REPLACED_S = 5.0  # for processes whose model was loaded again: Triton 2.51 never ends them beside a dead process
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 30.0
RESTARTS, RESTARTS_WITHIN_S = 10, 600.0
METRICS_PORT = 8003
TICK_S = 0.1


class Stopping(Exception):
    """A signal asked for the end."""


class Supervisor:
    """Remembers over all runs of the server what it refused."""

    def __init__(
        self, options: ServerOptions, acts: Acts, key: str, ports: Sequence[int], health_port: int | None = None
    ) -> None:
        self._options, self._acts, self._stopped = options, acts, threading.Event()
        self._control = Control(options.http_url, options.headers, options.grpc_url, options.grpc_headers)
        self._prober = Prober(options.http_url, options.headers, health_port)
        health_url = f"127.0.0.1:{health_port}" if health_port else None
        self._urls = [url for url in (options.http_url, options.grpc_url, health_url) if url]
        self._key, self._ports = key, ports
        self._restarts: deque[float] = deque()
        self._refused: dict[str, set[int]] = {}  # model -> versions

    def _tick(self) -> None:
        if self._stopped.wait(TICK_S):
            raise Stopping

    def _call(self, function: Callable[[], None], seconds: float = LOAD_S) -> None:
        """In a thread: a signal need not wait. Raises what `function` raises.

        ControlFailed after twice `seconds`: gRPC's own deadline may be lost when the wall clock jumps.
        """
        deadline = time.monotonic() + 2 * seconds
        failures: list[Exception] = []

        def run() -> None:
            try:
                function()
            except Exception as error:
                failures.append(error)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        while thread.is_alive():
            if time.monotonic() > deadline:
                raise ControlFailed(f"no answer within {2 * seconds:g} s")
            self._tick()
        if failures:
            raise failures[0]

    def stop(self, number: int, frame: FrameType | None) -> None:
        self._stopped.set()

    def run(self) -> int:
        while True:
            try:
                self._serve()
            except Stopping:
                self._acts.say("stopped")
                return 0
            except ServerLost:
                pass
            if not self._pause():
                return 0 if self._stopped.is_set() else 1

    def _pause(self) -> bool:
        now = time.monotonic()
        self._restarts.append(now)
        while now - self._restarts[0] > RESTARTS_WITHIN_S:
            self._restarts.popleft()
        count = len(self._restarts)
        if count > RESTARTS:
            self._acts.gave_up(RESTARTS, RESTARTS_WITHIN_S)
            return False
        pause_s = 0.0 if count == 1 else min(FIRST_PAUSE_S * 2 ** (count - 2), LONGEST_PAUSE_S)
        if pause_s:
            self._acts.say(f"next start in {pause_s:g} s")
        return not self._stopped.wait(pause_s)

    def _serve(self) -> None:
        """One run of the server, from its start to its end."""
        self._acts.forget_plans()
        try:
            self._wait_for_ports()
            self._keep_key()
            plans = self._plans()
        except ServerLost as lost:
            self._acts.ended(lost.reason, str(lost))
            raise
        at_start = [name for name, each in plans.items() if not each.differs and each.versions != ()]
        complete = all(each.versions is not None for each in plans.values())
        memory = f"vitbn_{secrets.token_hex(4)}_"
        process = spawn([sys.executable, "-m", "serving.launcher", *self._options.command(at_start, complete, memory)])
        self._acts.started(process.pid)
        family, grace_s = Family(process.pid, memory), END_S
        try:
            self._load(process, plans)
            self._prober.start()
            self._watch(process, family)
        except Stopping:
            grace_s = STOP_S
            raise
        except ServerLost as lost:
            self._acts.ended(*_cause(process, lost))
            raise
        finally:
            self._prober.stop()
            family.look()
            code = end(process, grace_s)
            self._acts.swept(*family.sweep())
            if code and self._stopped.is_set():
                self._acts.say(f"requests, connections or models were open after {EXIT_TIMEOUT_S} s: they were cut off")

    def _wait_for_ports(self) -> None:
        """Raises ServerLost: on a taken port another server's answers would pass for this server's."""
        deadline = time.monotonic() + PORTS_S
        while taken := [url for url in self._urls if is_taken(url)]:
            if time.monotonic() > deadline:
                raise ServerLost("blocked", f"{taken[0]}: {TAKEN}")
            self._tick()

    def _keep_key(self) -> None:
        """Once the ports are free: before, the key there is another server's."""
        try:
            control_key.keep(self._ports, self._key)
        except control_key.KeyFailed as failure:
            self._acts.say(f"warning: {failure}; only this supervisor can change its server")

    def _plans(self) -> dict[str, Plan]:
        """Raises ServerLost without the repository, such as a network folder that is away."""
        try:
            return {name: self._plan(name) for name in self._options.model_dirs()}
        except OSError as error:
            text = f"{error.filename}: expected a model repository, found {error.strerror}"
            raise ServerLost("blocked", text) from error

    def _plan(self, name: str) -> Plan:
        """Also of a model that an operator has loaded or removed since the start."""
        folder = self._options.folder(name)
        return plan(folder, self._refused.get(name, ())) if folder else Plan(name, None)

    def _load(self, process: subprocess.Popen[bytes], plans: dict[str, Plan]) -> None:
        """Loads what the server could not load at its start; raises ServerLost."""
        index = self._wait_for_index(process)
        for name, first in plans.items():
            self._acts.planned(name, first.versions or (), first.problems)
            ready = {number for number, state in index.get(name, {}).items() if state == "READY"}
            if not first.versions or ready >= {*first.versions}:
                continue
            if not first.differs:  # Triton says "not ready" for ever after a failed load at its start
                self._refused.setdefault(name, set()).add(first.versions[-1])
                raise ServerLost("refused", f"model {name}, version {first.versions[-1]} does not load")
            self._load_newest(name, first)

    def _wait_for_index(self, process: subprocess.Popen[bytes]) -> dict[str, dict[int, str]]:
        deadline = time.monotonic() + START_S
        while True:
            self._check(process)
            try:
                return self._control.index()
            except ControlFailed as error:
                if time.monotonic() > deadline:
                    raise ServerLost("hung", f"no index within {START_S:g} s of its start: {error}") from error
            self._tick()

    def _load_newest(self, name: str, current: Plan) -> None:
        """An older version where Triton refuses the newer."""
        while current.versions:
            try:
                self._call(partial(self._control.load, name, current.json(), LOAD_S))
                return
            except ControlFailed as error:
                self._acts.say(f"model {name}: {error}")
                current = self._plan_without(name, {current.versions[-1]})

    def _plan_without(self, name: str, refused: Collection[int]) -> Plan:
        self._refused.setdefault(name, set()).update(refused)
        current = self._plan(name)
        self._acts.planned(name, current.versions or (), current.problems)
        return current

    def _check(self, process: subprocess.Popen[bytes]) -> None:
        if self._stopped.is_set():
            raise Stopping
        if process.poll() is not None:
            raise ServerLost("died", end_of(process.returncode))

    def _watch(self, process: subprocess.Popen[bytes], family: Family) -> None:
        judge, looked_s, stubs, healthy = Judge(), 0.0, list[Stub](), False
        replaced: dict[Stub, float] = {}  # stubs of models that were loaded again -> when to kill them
        while True:
            self._check(process)
            if time.monotonic() - looked_s > LOOK_S:
                stubs, looked_s = family.look(), time.monotonic()
                for stub in [stub for stub, due_s in replaced.items() if due_s < looked_s]:
                    stub.kill()
                    replaced[stub] = math.inf
                for stub in judge.lame(stubs, replaced):
                    if self._is_ready(stub.model, stub.version):  # an unloaded version's processes end rightly
                        reason = f"version {stub.version} has lost process {stub.process.pid}"
                        replaced |= self._heal(judge, Sick(stub.model, reason), stubs)
                        break
            verdict = self._prober.verdict()
            if verdict is None:
                self._tick()
                continue
            self._acts.probed(verdict.ok)
            if verdict.ok and not healthy:
                self._acts.say(f"every served version answers right: {', '.join(sorted(verdict.models))}")
            healthy = verdict.ok
            for sick in judge.sick(verdict, stubs):
                replaced |= self._heal(judge, sick, stubs)

    def _heal(self, judge: Judge, sick: Sick, stubs: Sequence[Stub]) -> dict[Stub, float]:
        """Loads a model again: its other processes answer until the new ones do. Returns the replaced processes.

        A version that still answers wrong gives way to an older one, or to none. Raises ServerLost where only a new
        server helps.
        """
        name, own = sick.model, [stub for stub in stubs if stub.model == sick.model]
        blamed = judge.is_version_to_blame(sick)
        current = self._plan_without(name, sick.wrong) if blamed else self._plan(name)
        if judge.is_healed_in_vain(name) and (not blamed or current.versions is None):
            raise ServerLost("failed", f"model {name} is not right after a load: {sick.reason}")
        self._acts.reloading(name, sick.reason)
        for stub in own:
            if stub.stopped:  # it would hold up the unload and, if it went on, end the server
                stub.kill()
        self._prober.stop()  # health checks, too: a proxy frees the requests that a dead process holds
        try:
            if current.versions == ():
                self._call(partial(self._control.unload, name, RELOAD_S), RELOAD_S)
            elif config := current.json(again=True):
                self._call(partial(self._control.load, name, config, RELOAD_S), RELOAD_S)
            else:
                raise ServerLost("failed", f"model {name} {sick.reason}, and its config.pbtxt names no inputs")
        except ControlFailed as error:
            raise ServerLost("failed", f"model {name} does not load again: {error}") from error
        judge.healed(name)
        self._prober.start()
        self._acts.say(f"model {name} is loaded again")
        return dict.fromkeys(own, time.monotonic() + REPLACED_S)

    def _is_ready(self, name: str, version: int) -> bool:
        with suppress(ControlFailed):
            return self._control.index().get(name, {}).get(version) == "READY"
        return False


def _cause(process: subprocess.Popen[bytes], lost: ServerLost) -> tuple[str, str]:
    """A server that dies during a load looks as if only the load had failed."""
    try:
        return "died", end_of(process.wait(DEATH_S))
    except subprocess.TimeoutExpired:
        return lost.reason, str(lost)


def supervise(arguments: Sequence[str], metrics_port: int | None = METRICS_PORT, health_port: int | None = None) -> int:
    """Raises ValueError for bad arguments and a taken port."""
    key = control_key.draw()
    closed = guarding.options(arguments, key)
    options, ports = parse([*closed, *arguments]), guarding.ports(arguments) if closed else []
    try:
        acts = Acts(metrics_port)
    except OSError as error:
        raise ValueError(f"port {metrics_port} for the supervisor's metrics: {error.strerror}") from error
    supervisor = Supervisor(options, acts, key, ports, health_port)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, supervisor.stop)
    try:
        return supervisor.run()
    finally:
        control_key.forget(ports, key)
