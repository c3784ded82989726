"""`vitbn serve --supervised`: keeps a server answering correctly.

In: Triton's arguments. Out: the newest whole version of every model is served until SIGTERM or SIGINT, then exit code
0; exit code 1 after too many restarts. The probe asks every served version a stored image each second:

- a model that fails twice, or has lost a process of an instance, is unloaded and loaded;
- a server that dies, does not answer, or fails again after a load is ended, swept and started, with a growing pause.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from types import FrameType

import click
import psutil

from serving.acts import Acts
from serving.arguments import EXIT_TIMEOUT_S, ServerOptions, parse
from serving.control import Control, ControlFailed
from serving.launcher import PARENT_VARIABLE, LauncherError, end_with_parent
from serving.prober import Prober, Verdict
from serving.processes import Family, Stub
from serving.whole import Plan, plan

TICK_S = 0.1
LOOK_S = 0.5  # between looks at the server's processes
LAME_S = 0.5  # for which a stub of a served version is dead or stopped, before its model is loaded again
START_S = 180.0  # for a start with every model
LOAD_S = 120.0
RELOAD_S = 20.0  # to load a model again while the others serve
UNLOAD_S = 3.0
STOP_S = 4.0  # Triton's own --exit-timeout-secs is below
DEATH_S = 0.5  # between a server's last answer and its exit code
END_S = 1.5  # for a server that has failed
FAILURES, RECENT = 2, 4  # failures among the last probes of a model: of two instances one may be dead
SILENCES = 3  # of the server, before it is started again
BUSY_SHARE = 0.2  # of a core; a stub that works this much is slow, not stuck
BUSY_S = 30.0  # a stub silent for longer is stuck after all
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 30.0
RESTARTS, RESTARTS_WITHIN_S = 10, 600.0
METRICS_PORT = 8003


class Stopping(Exception):
    """SIGTERM or SIGINT came."""


class ServerLost(Exception):
    """The server must be restarted; `reason` is a short word for the metric."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


@dataclass
class Watch:
    failed: dict[str, deque[bool]] = field(default_factory=dict)  # model -> whether each of its last probes failed
    reloaded: set[str] = field(default_factory=set)  # models loaded again, and not right since
    silent: int = 0
    busy: dict[str, tuple[float, float, float]] = field(default_factory=dict)  # model -> since, last look, processor
    lame: dict[Stub, float] = field(default_factory=dict)  # stub that can do nothing -> since
    replaced: set[Stub] = field(default_factory=set)  # of models that were loaded again


class Supervisor:
    def __init__(self, options: ServerOptions, acts: Acts, health_port: int | None = None) -> None:
        self._options, self._acts = options, acts
        self._control = Control(options.http_url, options.headers, options.grpc_url, options.grpc_headers)
        self._prober = Prober(options.http_url, options.headers, health_port)
        self._stop = threading.Event()
        self._restarts: deque[float] = deque()
        self._refused: dict[str, set[int]] = {}  # model -> whole versions that the server does not load

    def stop(self, number: int, frame: FrameType | None) -> None:
        """A signal handler."""
        self._stop.set()

    def run(self) -> int:
        """Returns the exit code."""
        while True:
            try:
                self._serve()
            except Stopping:
                self._acts.say("stopped")
                return 0
            except ServerLost:
                pass
            if not self._pause():
                return 0 if self._stop.is_set() else 1

    def _pause(self) -> bool:
        """Waits before the next start; False after too many restarts or a signal."""
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
        return not self._stop.wait(pause_s)

    def _serve(self) -> None:
        """One run of the server; raises ServerLost or Stopping."""
        self._acts.forget_plans()
        plans = {name: self._plan(name) for name in self._options.model_dirs()}
        at_start = [name for name, each in plans.items() if each.config is None and each.versions != ()]
        complete = all(each.versions is not None for each in plans.values())
        process = subprocess.Popen(
            [sys.executable, "-m", "serving.launcher", *self._options.command(at_start, complete)],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            env={**os.environ, PARENT_VARIABLE: str(os.getpid())},
        )
        self._acts.started(process.pid)
        family = Family(process.pid)
        grace_s = END_S
        try:
            self._load_all(process, plans)
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
            code = _end(process, grace_s)
            self._acts.swept(*family.sweep())
            if code and self._stop.is_set():
                self._acts.say(f"requests or connections were still open after {EXIT_TIMEOUT_S} s: they were cut off")

    def _load_all(self, process: subprocess.Popen[bytes], plans: Mapping[str, Plan]) -> None:
        """Waits for the server, then loads models that it could not load itself, an older version if necessary."""
        index = self._wait_for_index(process)
        for name, first in plans.items():
            self._acts.planned(name, first.versions or (), first.problems)
            ready = {number for number, state in index.get(name, {}).items() if state == "READY"}
            if not first.versions or ready >= {*first.versions}:
                continue
            if first.config is None:  # after a failed load at its start Triton says "not ready" for ever
                self._refused.setdefault(name, set()).add(first.versions[-1])
                raise ServerLost("refused", f"model {name}, version {first.versions[-1]} does not load")
            self._load_newest(name, first)

    def _plan(self, name: str) -> Plan:
        return plan(self._options.model_dirs()[name], self._refused.get(name, ()))

    def _load_newest(self, name: str, current: Plan) -> None:
        """Loads `current`; if the server refuses it, a plan without its newest version."""
        while current.versions:
            try:
                self._call(partial(self._control.load, name, current.config, LOAD_S))
                return
            except ControlFailed as error:
                self._refused.setdefault(name, set()).add(current.versions[-1])
                self._acts.say(f"model {name}: {error}")
                current = self._plan(name)
                self._acts.planned(name, current.versions or (), current.problems)

    def _wait_for_index(self, process: subprocess.Popen[bytes]) -> dict[str, dict[int, str]]:
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            self._check(process)
            with suppress(ControlFailed):
                return self._control.index()
            self._sleep()
        raise ServerLost("hung", f"no answer within {START_S:g} s of its start")

    def _watch(self, process: subprocess.Popen[bytes], family: Family) -> None:
        """Ends with ServerLost or Stopping."""
        watch, looked_s, stubs, healthy = Watch(), 0.0, [], False
        while True:
            self._check(process)
            if time.monotonic() - looked_s > LOOK_S:
                stubs, looked_s = family.look(), time.monotonic()
                self._heal_lame(watch, stubs)
            verdict = self._prober.verdict()
            if verdict is None:
                self._sleep()
                continue
            self._acts.probed(verdict.ok)
            if verdict.ok and not healthy:
                self._acts.say(f"every served version answers right: {', '.join(sorted(verdict.models))}")
            healthy = verdict.ok
            self._judge(verdict, watch, stubs)

    def _judge(self, verdict: Verdict, watch: Watch, stubs: Sequence[Stub]) -> None:
        """Counts failures; reloads a model, or raises ServerLost after too many failures."""
        if not verdict.models and not verdict.ok:
            watch.silent += 1
            if watch.silent >= SILENCES:
                raise ServerLost("hung", verdict.reason)
            return
        watch.silent = 0
        failing = {failure.model: failure for failure in verdict.failures}
        for model in verdict.models - failing.keys():
            watch.failed.setdefault(model, deque(maxlen=RECENT)).append(False)
            watch.busy.pop(model, None)
            watch.reloaded.discard(model)
        for model, failure in failing.items():
            own = [stub for stub in stubs if stub.model == model]
            if failure.silent and _works(watch, model, own):
                continue
            watch.failed.setdefault(model, deque(maxlen=RECENT)).append(True)
            if sum(watch.failed[model]) < FAILURES:
                continue
            self._reload(watch, model, f"failed twice ({failure.reason})", own)

    def _heal_lame(self, watch: Watch, stubs: Sequence[Stub]) -> None:
        """Loads a model again of whose instances a process is dead or stopped: with several the probes may pass."""
        now = time.monotonic()
        lame = (stub for stub in stubs if stub.stopped and stub not in watch.replaced)
        watch.lame = {stub: watch.lame.get(stub, now) for stub in lame}
        for stub, since_s in watch.lame.items():
            if now - since_s >= LAME_S and self._is_served(stub):
                reason = f"version {stub.version} has lost process {stub.process.pid}"
                self._reload(watch, stub.model, reason, [each for each in stubs if each.model == stub.model])
                return

    def _is_served(self, stub: Stub) -> bool:
        """False for a version that is just unloaded, whose processes end rightly."""
        with suppress(ControlFailed):
            return self._control.index().get(stub.model, {}).get(stub.version) == "READY"
        return False

    def _reload(self, watch: Watch, model: str, reason: str, stubs: Sequence[Stub]) -> None:
        """Unloads and loads a model that has `stubs`; raises ServerLost if that does not work."""
        if model in watch.reloaded:
            raise ServerLost("failed", f"model {model} is not right after a load: {reason}")
        self._acts.reloading(model, reason)
        for stub in stubs:
            if stub.stopped:  # a stopped stub would hold up the unload, and end the server if it went on
                _kill(stub)
        again = self._plan(model)
        self._rest(self._prober.withdraw())  # Triton answers 400 for a model that is unloaded: no proxy asks again then
        try:
            self._call(lambda: self._control.unload(model, UNLOAD_S))
            self._wait_until_unloaded(model)
            self._call(lambda: self._control.load(model, again.config, RELOAD_S))
        except ControlFailed as error:
            raise ServerLost("failed", f"model {model} does not load again: {error}") from error
        for stub in stubs:  # where one process of several is dead, Triton 2.51 never ends the others
            _kill(stub)
        watch.replaced |= {*stubs}
        self._prober.start()  # healthy again after a verdict on the new processes
        watch.failed.pop(model, None)
        watch.reloaded.add(model)
        self._acts.say(f"model {model} is loaded again")

    def _wait_until_unloaded(self, model: str) -> None:
        deadline = time.monotonic() + UNLOAD_S
        while "READY" in self._control.index().get(model, {}).values() and time.monotonic() < deadline:
            self._sleep()

    def _call(self, function: Callable[[], None]) -> None:
        """Runs `function` in a thread, so that a signal need not wait for it; raises what it raises, or Stopping."""
        failures: list[ControlFailed] = []

        def run() -> None:
            try:
                function()
            except ControlFailed as error:
                failures.append(error)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        while thread.is_alive():
            self._sleep()
        if failures:
            raise failures[0]

    def _check(self, process: subprocess.Popen[bytes]) -> None:
        if self._stop.is_set():
            raise Stopping
        if process.poll() is not None:
            raise ServerLost("died", f"exit code {process.returncode}")

    def _rest(self, seconds: float) -> None:
        """Raises Stopping."""
        if self._stop.wait(seconds):
            raise Stopping

    def _sleep(self) -> None:
        """One tick; raises Stopping."""
        self._rest(TICK_S)


def _works(watch: Watch, model: str, stubs: Sequence[Stub]) -> bool:
    """Whether a silent model is only slow: its stubs use the processor, and not for too long."""
    if not stubs or any(stub.stopped for stub in stubs):
        return False
    now, spent_s = time.monotonic(), sum(stub.processor_s() for stub in stubs)
    since_s, looked_s, before_s = watch.busy.get(model, (now, now, spent_s))
    watch.busy[model] = (since_s, now, spent_s)
    if now == looked_s:
        return True  # nothing to compare with yet
    return spent_s - before_s > BUSY_SHARE * (now - looked_s) and now - since_s < BUSY_S


def _kill(stub: Stub) -> None:
    with suppress(psutil.NoSuchProcess):
        stub.process.kill()


def _cause(process: subprocess.Popen[bytes], lost: ServerLost) -> tuple[str, str]:
    """Reason and detail: a server that dies during a load looks at first as if only the load had failed."""
    try:
        return "died", f"exit code {process.wait(DEATH_S)}"
    except subprocess.TimeoutExpired:
        return lost.reason, str(lost)


def _end(process: subprocess.Popen[bytes], grace_s: float) -> int:
    """SIGTERM, then SIGKILL after `grace_s` seconds; returns the exit code."""
    process.terminate()
    try:
        return process.wait(grace_s)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def supervise(arguments: Sequence[str], metrics_port: int | None = METRICS_PORT, health_port: int | None = None) -> int:
    """Returns the exit code. Raises ValueError for bad arguments."""
    end_with_parent(os.environ.pop(PARENT_VARIABLE, None))
    options = parse(arguments)
    try:
        acts = Acts(metrics_port)
    except OSError as error:
        raise ValueError(f"port {metrics_port} for the supervisor's metrics: {error.strerror}") from error
    supervisor = Supervisor(options, acts, health_port)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, supervisor.stop)
    return supervisor.run()


@click.command(context_settings={"ignore_unknown_options": True})
@click.option("--supervisor-port", type=click.IntRange(0, 65535), default=METRICS_PORT, show_default=True)
@click.option("--health-port", type=click.IntRange(0, 65535), default=0, help="For a proxy's health checks.  [0: none]")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def main(supervisor_port: int, health_port: int, arguments: tuple[str, ...]) -> None:
    """Run tritonserver under supervision; port 0: no metrics of the supervisor."""
    try:
        sys.exit(supervise(arguments, supervisor_port or None, health_port or None))
    except (ValueError, LauncherError) as error:
        raise click.ClickException(str(error)) from error


if __name__ == "__main__":
    main()
