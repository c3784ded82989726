"""Judges by probes and processes which model is sick. Acts nothing itself.

In: the probe's verdicts, the server's stubs. Out: `Sick`, or ServerLost for a server that no longer answers.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from serving.prober import Verdict
from serving.processes import Stub

LAME_S = 0.5  # before a dead or stopped stub counts
FAILURES, RECENT = 2, 4  # among a model's last probes: of two instances one may be dead
SILENCES = 3  # before a restart
BUSY_SHARE = 0.2  # of a core; above this a stub is slow, not stuck
BUSY_S = 30.0  # then a silent stub is stuck after all


class ServerLost(Exception):
    """Only a new server helps; `reason` is a short word for the metric."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


@dataclass(frozen=True)
class Sick:
    """`wrong`: the versions that answer, but not as published."""

    model: str
    reason: str
    wrong: frozenset[int] = frozenset()


class Judge:
    """Of one run of the server."""

    def __init__(self) -> None:
        self._silent = 0
        self._failed: dict[str, deque[bool]] = {}  # model -> its last probes
        self._healed: set[str] = set()  # loaded again and not right since
        self._right: set[str] = set()  # models that were right once
        self._busy: dict[str, tuple[float, float, float]] = {}  # model -> since, last look, processor
        self._lame: dict[Stub, float] = {}  # dead or stopped stub -> since

    def healed(self, model: str) -> None:
        """It was loaded again: new processes answer."""
        self._failed.pop(model, None)
        self._busy.pop(model, None)
        self._healed.add(model)

    def is_healed_in_vain(self, model: str) -> bool:
        return model in self._healed

    def is_version_to_blame(self, sick: Sick) -> bool:
        """Whether another load of a version that answers wrong would be in vain."""
        return bool(sick.wrong) and (sick.model in self._healed or sick.model not in self._right)

    def lame(self, stubs: Sequence[Stub], replaced: Collection[Stub]) -> list[Stub]:
        """Stubs that have been dead or stopped for a while: other instances of their model may pass the probe."""
        now = time.monotonic()
        self._lame = {stub: self._lame.get(stub, now) for stub in stubs if stub.stopped and stub not in replaced}
        return [stub for stub, since_s in self._lame.items() if now - since_s >= LAME_S]

    def sick(self, verdict: Verdict, stubs: Sequence[Stub]) -> list[Sick]:
        """Raises ServerLost."""
        if not verdict.models and not verdict.ok:
            self._silent += 1
            if self._silent >= SILENCES:
                raise ServerLost("hung", verdict.reason)
            return []
        self._silent = 0
        failing = {failure.model: failure for failure in verdict.failures}
        for model in verdict.models - failing.keys():
            self._failed.setdefault(model, deque(maxlen=RECENT)).append(False)
            self._busy.pop(model, None)
            self._healed.discard(model)
            self._right.add(model)
        found = []
        for model, failure in failing.items():
            if failure.silent and self._works(model, [stub for stub in stubs if stub.model == model]):
                continue
            self._failed.setdefault(model, deque(maxlen=RECENT)).append(True)
            if sum(self._failed[model]) >= FAILURES:
                wrong = frozenset(each.version for each in verdict.failures if each.model == model and each.wrong)
                found.append(Sick(model, f"failed twice ({failure.reason})", wrong))
        return found

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
