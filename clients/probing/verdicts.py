"""The verdict of a probe on a server, and on every served version."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Literal

State = Literal["right", "not compared", "busy", "wrong", "failed"]
PASSING: tuple[State, ...] = ("right", "not compared", "busy")


class ProbeFailed(Exception):
    """There is no answer to judge. `passing`: the reason may be that the server is busy."""

    def __init__(self, message: str, passing: bool = False) -> None:
        super().__init__(message)
        self.passing = passing


@dataclass(frozen=True)
class VersionProbe:
    """The verdict on a version of a model.

    ms:            milliseconds until the verdict.
    max_abs_error: largest absolute difference from the stored answer; None without a stored answer, and for answers
                   with NaN or infinity.
    reason:        why the state is not "right".
    """

    model: str
    version: str
    state: State
    ms: float
    max_abs_error: float | None = None
    reason: str = ""


@dataclass(frozen=True)
class Probe:
    """The verdict on a server. `seconds`: duration of the probe; `reason`: why no version could be asked."""

    url: str
    ok: bool
    seconds: float
    versions: Sequence[VersionProbe] = ()
    reason: str = ""

    def to_json(self) -> str:
        return json.dumps(asdict(self))
