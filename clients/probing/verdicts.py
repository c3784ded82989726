"""What a probe says of a server and of each served version."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Literal

State = Literal["right", "not compared", "busy", "wrong", "failed"]
PASSING: tuple[State, ...] = ("right", "not compared", "busy")


class ProbeFailed(Exception):
    """There is no answer to judge. `passing`: the server may just be busy."""

    def __init__(self, message: str, passing: bool = False) -> None:
        super().__init__(message)
        self.passing = passing


@dataclass(frozen=True)
class VersionProbe:
    """`max_abs_error` is None without a stored answer and for answers with NaN or infinity."""

    model: str
    version: str
    state: State
    ms: float
    max_abs_error: float | None = None
    reason: str = ""


@dataclass(frozen=True)
class Probe:
    url: str
    ok: bool
    seconds: float
    versions: Sequence[VersionProbe] = ()
    reason: str = ""

    def to_json(self) -> str:
        return json.dumps(asdict(self))
