"""Judges by probes and processes which model is sick; it does not heal.

In: the probe's verdicts, the server's stubs. Out: `Sick`, or ServerLost for a server that no longer answers.
"""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from serving.prober import Failure, Verdict
from serving.processes import Stub

LAME_S = 0.5  # before a dead or stopped stub counts
FAILURES, RECENT = 2, 4  # failures among the last probes make a model sick: one dead instance of two fails every other
SILENCES = 3  # verdicts without an answer of the server, before a restart
BUSY_SHARE = 0.2  # of a core; above this a stub is slow, not stuck
BUSY_S = 30.0  # then a silent stub is stuck after all


class ServerLost(Exception):
    """The server does not recover: only a new server helps. `reason` is a short word for the metric."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


@dataclass(frozen=True)
class Sick:
    """A model to heal. Versions to give up, with the reason: `wrong` always, `slow` only if another can be served.

    `broken`: the files of a version are not as published.
    """

    model: str
    reason: str
    broken: bool = False
    wrong: Mapping[int, str] = field(default_factory=dict)
    slow: Mapping[int, str] = field(default_factory=dict)


@dataclass
class History:
    """What a model did in one run of the server."""

    failed: deque[bool] = field(default_factory=lambda: deque(maxlen=RECENT))  # its last probes
    right: set[int] = field(default_factory=set)  # versions that have been right
    in_vain: bool = False  # loaded again and not right since
    busy: tuple[float, float, float] | None = None  # times of the first and last look, processor seconds then

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


class Lame:
    """Finds processes that have been dead or stopped for `seconds`."""

    def __init__(self, seconds: float) -> None:
        self._seconds, self._since = seconds, dict[Stub, float]()

    def among(self, stubs: Iterable[Stub]) -> list[Stub]:
        now = time.monotonic()
        self._since = {stub: self._since.get(stub, now) for stub in stubs if stub.stopped}
        return [stub for stub, since_s in self._since.items() if now - since_s >= self._seconds]


class Judge:
    """Judges the models in one run of the server."""

    def __init__(self) -> None:
        self._silent = 0
        self._models = defaultdict[str, History](History)
        self._lame = Lame(LAME_S)

    def healed(self, model: str) -> None:
        """Call it after a load: the model's new processes have no failures yet."""
        self._models[model] = History(right=self._models[model].right, in_vain=True)

    def is_healed_in_vain(self, model: str) -> bool:
        return self._models[model].in_vain

    def is_new(self, model: str, version: int) -> None:
        """Call it when a version has other files: its right answers before them count no more."""
        self._models[model].right.discard(version)

    def lame(self, stubs: Sequence[Stub], replaced: Collection[Stub]) -> list[Stub]:
        """Stubs that have been dead or stopped for LAME_S. A probe may miss them: other instances answer it."""
        return self._lame.among(stub for stub in stubs if stub not in replaced)

    def sick(self, verdict: Verdict, stubs: Sequence[Stub]) -> list[Sick]:
        """The models that must be healed after this verdict. Raises ServerLost."""
        self._silent = 0 if verdict.states or verdict.ok else self._silent + 1
        if self._silent >= SILENCES:
            raise ServerLost("hung", verdict.reason)
        found = []
        for model in verdict.models:
            history, failures = self._models[model], [each for each in verdict.failures if each.model == model]
            history.right |= verdict.versions(model, "right", "not compared")
            if broken := [each for each in failures if each.broken]:
                found.append(Sick(model, broken[-1].reason, broken=True))
                continue
            doubted = [
                each for each in failures if each.wrong and (history.in_vain or each.version not in history.right)
            ]
            if doubted:
                reason = f"version {doubted[-1].version} answers wrong ({doubted[-1].reason})"
                found.append(Sick(model, reason, wrong={each.version: each.reason for each in doubted}))
                continue
            if not failures and verdict.versions(model, "busy") - history.right:
                continue  # it has answered somebody, but nobody knows what
            if not failures:
                history.failed.append(False)
                history.in_vain, history.busy = False, None
                continue
            if failures[-1].silent and history.works([stub for stub in stubs if stub.model == model]):
                continue
            history.failed.append(True)
            if sum(history.failed) >= FAILURES:
                slow = self._slow(history, failures, verdict.versions(model))
                found.append(Sick(model, f"failed twice ({failures[-1].reason})", slow=slow))
        return found

    def _slow(self, history: History, failures: Sequence[Failure], served: Collection[int]) -> dict[int, str]:
        """Versions that have not answered in time after two loads, at the server's start and again.

        There are none if several versions are served and all are silent: then the server is slow.
        """
        silent = {each.version: each.reason for each in failures if each.silent and each.version not in history.right}
        return silent if history.in_vain and (len(served) == 1 or len(silent) < len(served)) else {}
