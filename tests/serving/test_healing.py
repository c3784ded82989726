from dataclasses import dataclass

import pytest

from serving.healing import Healing
from serving.prober import Failure, Verdict


@dataclass(frozen=True)
class Stub:
    spent_s: float
    model: str = "linear"
    stopped: bool = False
    process: object = None

    def processor_s(self) -> float:
        return self.spent_s


class Anything:
    """Loading, prober, acts and waits that do nothing."""

    def __getattr__(self, name: str) -> object:
        return lambda *_: None


SILENT = Verdict(False, (Failure("linear", 1, "no answer in time"),), frozenset({"linear"}), "")
WRONG = Verdict(False, (Failure("linear", 1, "wrong"),), frozenset({"linear"}), "")


def test_new_processes_are_not_compared_with_old(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow model would fail at once after its load."""
    monkeypatch.setattr("serving.healing._kill", lambda stub: None)
    healing = Healing(*(Anything() for _ in range(4)))
    healing._judge(SILENT, [Stub(100.0)])
    for _ in range(2):
        healing._judge(WRONG, [Stub(100.0)])
    assert healing._reloaded == {"linear"}
    for _ in range(2):
        healing._judge(SILENT, [Stub(1.0)])
