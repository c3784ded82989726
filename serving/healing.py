"""Judges by probes and processes which model is sick. Acts nothing itself.

In: the probe's verdicts, the server's stubs. Out: `Sick`, or ServerLost for a server that no longer answers.
"""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

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


@dataclass
class History:
    """Of a model, in one run of the server."""

    failed: deque[bool] = field(default_factory=lambda: deque(maxlen=RECENT))  # its last probes
    was_right: bool = False
    in_vain: bool = False  # loaded again and not right since
    busy: tuple[float, float, float] | None = None  # since, last look, processor time then

    def works(self, stubs: Sequence[Stub]) -> bool:
        """Whether a silent model is only slow: its stubs use the processor."""
        if not stubs or any(stub.stopped for stub in stubs):
            return False
        now, spent_s = time.monotonic(), sum(stub.processor_s() for stub in stubs)
        since_s, looked_s, before_s = self.busy or (now, now, spent_s)
        self.busy = (since_s, now, spent_s)
        if now == looked_s:
            return True  # nothing to compare with yet
        return spent_s - before_s > BUSY_SHARE * (now - looked_s) and now - since_s < BUSY_S


class Judge:
    """Of one run of the server."""

    def __init__(self) -> None:
        self._silent = 0
        self._models = defaultdict[str, History](History)
        self._lame: dict[Stub, float] = {}  # dead or stopped stub -> since

    def healed(self, model: str) -> None:
        """It was loaded again: new processes answer."""
        self._models[model] = History(was_right=self._models[model].was_right, in_vain=True)

    def is_healed_in_vain(self, model: str) -> bool:
        return self._models[model].in_vain

    def is_version_to_blame(self, sick: Sick) -> bool:
        """Whether another load of a version that answers wrong would be in vain."""
        history = self._models[sick.model]
        return bool(sick.wrong) and (history.in_vain or not history.was_right)

    def lame(self, stubs: Sequence[Stub], replaced: Collection[Stub]) -> list[Stub]:
        """Stubs that have been dead or stopped for a while: other instances of their model may pass the probe."""
        now = time.monotonic()
        self._lame = {stub: self._lame.get(stub, now) for stub in stubs if stub.stopped and stub not in replaced}
        return [stub for stub, since_s in self._lame.items() if now - since_s >= LAME_S]

    def sick(self, verdict: Verdict, stubs: Sequence[Stub]) -> list[Sick]:
        """Raises ServerLost."""
        self._silent = 0 if verdict.models or verdict.ok else self._silent + 1
        if self._silent >= SILENCES:
            raise ServerLost("hung", verdict.reason)
        found = []
        for model in sorted(verdict.models):
            history, failures = self._models[model], [each for each in verdict.failures if each.model == model]
            if not failures:
                history.failed.append(False)
                history.was_right, history.in_vain, history.busy = True, False, None
                continue
            if failures[-1].silent and history.works([stub for stub in stubs if stub.model == model]):
                continue
            history.failed.append(True)
            if sum(history.failed) >= FAILURES:
                wrong = frozenset(each.version for each in failures if each.wrong)
                found.append(Sick(model, f"failed twice ({failures[-1].reason})", wrong))
        return found
