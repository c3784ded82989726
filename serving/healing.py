"""Heals a running server: loads a model again, or gives the server up.

In: the probe's verdicts and the server's processes. Out: acts, until ServerLost or Stopping.
"""

import subprocess
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress

import psutil

from serving.acts import Acts
from serving.control import ControlFailed
from serving.loading import Loading
from serving.prober import Prober, Verdict
from serving.processes import Family, Stub
from serving.waits import ServerLost, Waits

LOOK_S = 0.5  # between looks at processes
LAME_S = 0.5  # before a dead or stopped stub counts
FAILURES, RECENT = 2, 4  # among a model's last probes: of two instances one may be dead
SILENCES = 3  # before a restart
BUSY_SHARE = 0.2  # of a core; above this a stub is slow, not stuck
BUSY_S = 30.0  # then a silent stub is stuck after all


class Healing:
    def __init__(self, loading: Loading, prober: Prober, acts: Acts, waits: Waits) -> None:
        self._loading, self._prober, self._acts, self._waits = loading, prober, acts, waits
        self._silent = 0
        self._failed: dict[str, deque[bool]] = {}  # model -> its last probes
        self._reloaded: set[str] = set()  # not right since
        self._busy: dict[str, tuple[float, float, float]] = {}  # model -> since, last look, processor
        self._lame: dict[Stub, float] = {}  # dead or stopped stub -> since
        self._replaced: set[Stub] = set()  # stubs of models loaded again

    def watch(self, process: subprocess.Popen[bytes], family: Family) -> None:
        looked_s, stubs, healthy = 0.0, list[Stub](), False
        while True:
            self._waits.check(process)
            if time.monotonic() - looked_s > LOOK_S:
                stubs, looked_s = family.look(), time.monotonic()
                self._heal_lame(stubs)
            verdict = self._prober.verdict()
            if verdict is None:
                self._waits.tick()
                continue
            self._acts.probed(verdict.ok)
            if verdict.ok and not healthy:
                self._acts.say(f"every served version answers right: {', '.join(sorted(verdict.models))}")
            healthy = verdict.ok
            self._judge(verdict, stubs)

    def _judge(self, verdict: Verdict, stubs: Sequence[Stub]) -> None:
        if not verdict.models and not verdict.ok:
            self._silent += 1
            if self._silent >= SILENCES:
                raise ServerLost("hung", verdict.reason)
            return
        self._silent = 0
        failing = {failure.model: failure for failure in verdict.failures}
        for model in verdict.models - failing.keys():
            self._failed.setdefault(model, deque(maxlen=RECENT)).append(False)
            self._busy.pop(model, None)
            self._reloaded.discard(model)
        for model, failure in failing.items():
            own = [stub for stub in stubs if stub.model == model]
            if failure.silent and self._works(model, own):
                continue
            self._failed.setdefault(model, deque(maxlen=RECENT)).append(True)
            if sum(self._failed[model]) < FAILURES:
                continue
            self._reload(model, f"failed twice ({failure.reason})", own)

    def _works(self, model: str, stubs: Sequence[Stub]) -> bool:
        """Whether a silent model is only slow: its stubs use the processor."""
        if not stubs or any(stub.stopped for stub in stubs):
            return False
        now, spent_s = time.monotonic(), sum(stub.processor_s() for stub in stubs)
        since_s, looked_s, before_s = self._busy.get(model, (now, now, spent_s))
        self._busy[model] = (since_s, now, spent_s)
        if now == looked_s:
            return True  # nothing to compare with yet
        return spent_s - before_s > BUSY_SHARE * (now - looked_s) and now - since_s < BUSY_S

    def _heal_lame(self, stubs: Sequence[Stub]) -> None:
        """A model's other instances may pass the probe."""
        now = time.monotonic()
        lame = (stub for stub in stubs if stub.stopped and stub not in self._replaced)
        self._lame = {stub: self._lame.get(stub, now) for stub in lame}
        for stub, since_s in self._lame.items():
            # An unloaded version's processes end rightly.
            if now - since_s >= LAME_S and self._loading.is_ready(stub.model, stub.version):
                reason = f"version {stub.version} has lost process {stub.process.pid}"
                self._reload(stub.model, reason, [each for each in stubs if each.model == stub.model])
                return

    def _reload(self, model: str, reason: str, stubs: Sequence[Stub]) -> None:
        if model in self._reloaded:
            raise ServerLost("failed", f"model {model} is not right after a load: {reason}")
        self._acts.reloading(model, reason)
        for stub in stubs:
            if stub.stopped:  # it would hold up the unload and, if it went on, end the server
                _kill(stub)
        again = self._loading.plan(model)
        self._waits.rest(self._prober.withdraw())  # no proxy may ask: of an unloaded model Triton answers 400
        try:
            self._loading.load_again(model, again)
        except ControlFailed as error:
            raise ServerLost("failed", f"model {model} does not load again: {error}") from error
        for stub in stubs:  # Triton 2.51 never ends processes beside a dead process
            _kill(stub)
        self._replaced |= {*stubs}
        self._prober.start()
        self._failed.pop(model, None)
        self._busy.pop(model, None)
        self._reloaded.add(model)
        self._acts.say(f"model {model} is loaded again")


def _kill(stub: Stub) -> None:
    with suppress(psutil.NoSuchProcess):
        stub.process.kill()
