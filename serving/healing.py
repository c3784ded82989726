"""Judges by probes and processes which models are sick. The supervisor heals them.

In: the probe's verdicts, the server's stubs. Out: `Sick` models, or ServerLost for a server that no longer answers.
"""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from serving.prober import Failure, Verdict
from serving.stub_processes import Stub

LAME_S = 0.5  # for which a stub must be dead or stopped before it counts
# 2 failures in the last 4 probes make a model sick: 1 dead instance of 2 fails every other probe.
FAILURES, RECENT = 2, 4
SILENCES = 3  # consecutive verdicts without any answer of the server, before a restart
BUSY_SHARE = 0.2  # of a core; above this a stub is slow, not stuck
BUSY_S = 30.0  # a stub that is silent for longer is stuck, however busy


class ServerLost(Exception):
    """Only a new server helps: this server does not recover. `reason`: a word for the metric's label."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


@dataclass(frozen=True)
class Sick:
    """A model to heal.

    broken: the files of a version are not as published.
    wrong:  version -> reason, of versions to give up.
    slow:   version -> reason, of versions to give up if another version can be served.
    """

    model: str
    reason: str
    broken: bool = False
    wrong: Mapping[int, str] = field(default_factory=dict)
    slow: Mapping[int, str] = field(default_factory=dict)


@dataclass
class History:
    """A model's results in one run of the server."""

    failed: deque[bool] = field(default_factory=lambda: deque(maxlen=RECENT))  # whether each of the last probes failed
    right: set[int] = field(default_factory=set)  # versions that have answered right
    in_vain: bool = False  # the model was loaded again and has not answered right since
    # time of the first look, time and processor seconds of the last look
    busy: tuple[float, float, float] | None = None

    def works(self, stubs: Sequence[Stub]) -> bool:
        """Whether a silent model is slow rather than stuck: its stubs use the processor."""
        if not stubs or any(stub.stopped for stub in stubs):
            return False
        now, spent_s = time.monotonic(), sum(stub.processor_s() for stub in stubs)
        since_s, looked_s, before_s = self.busy or (now, now, spent_s)
        self.busy = (since_s, now, spent_s)
        if now == looked_s:
            return True  # the first look: no earlier value to compare with
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
        """Call it when a version's files have changed: its earlier right answers no longer count."""
        self._models[model].right.discard(version)

    def lame(self, stubs: Sequence[Stub], replaced: Collection[Stub]) -> list[Stub]:
        """Stubs that have been dead or stopped for LAME_S. A probe may miss them, as other instances answer it."""
        return self._lame.among(stub for stub in stubs if stub not in replaced)

    def sick(self, verdict: Verdict, stubs: Sequence[Stub]) -> list[Sick]:
        """The models that must be healed after this verdict. Raises ServerLost."""
        self._silent = 0 if verdict.states or verdict.ok else self._silent + 1
        if self._silent >= SILENCES:
            raise ServerLost("hung", verdict.reason)
        sick_models = []
        for model in verdict.models:
            history, failures = self._models[model], [failure for failure in verdict.failures if failure.model == model]
            history.right |= verdict.versions(model, "right", "not compared")
            if broken := [failure for failure in failures if failure.broken]:
                sick_models.append(Sick(model, broken[-1].reason, broken=True))
                continue
            trusted = set() if history.in_vain else history.right  # versions that get a second chance
            wrong = [failure for failure in failures if failure.wrong and failure.version not in trusted]
            if wrong:
                reason = f"version {wrong[-1].version} answers wrong ({wrong[-1].reason})"
                sick_models.append(Sick(model, reason, wrong={failure.version: failure.reason for failure in wrong}))
                continue
            if not failures and verdict.versions(model, "busy") - history.right:
                continue  # a busy version has answered clients, but no answer was compared
            if not failures:
                history.failed.append(False)
                history.in_vain, history.busy = False, None
                continue
            if failures[-1].silent and history.works([stub for stub in stubs if stub.model == model]):
                continue
            history.failed.append(True)
            if sum(history.failed) >= FAILURES:
                slow = self._slow(history, failures, verdict.versions(model))
                sick_models.append(Sick(model, f"failed twice ({failures[-1].reason})", slow=slow))
        return sick_models

    def _slow(self, history: History, failures: Sequence[Failure], served: Collection[int]) -> dict[int, str]:
        """Version -> reason, of versions that have not answered in time after the server's start nor after a reload.

        Empty if several versions are served and all are silent: then the server is slow, not a version.
        """
        never_right = [failure for failure in failures if failure.version not in history.right]
        silent = {failure.version: failure.reason for failure in never_right if failure.silent}
        return silent if history.in_vain and (len(served) == 1 or len(silent) < len(served)) else {}
