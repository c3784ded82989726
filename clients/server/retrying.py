"""Pauses between retries, and a budget against storms on a busy server."""

import random
from collections.abc import Iterator

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 2.0
_SHARE = 0.1
_MOST = 10.0


class RetryBudget:
    """Limits retries at busy servers to a tenth of the answered requests, at most ten at once."""

    def __init__(self) -> None:
        self._saved = _MOST

    def earn(self) -> None:
        self._saved = min(_MOST, self._saved + _SHARE)

    def spend(self) -> bool:
        allowed = self._saved >= 1
        self._saved -= allowed
        return allowed


def pauses_s() -> Iterator[float]:
    """Each is twice the last, less up to half at random."""
    pause_s = _FIRST_PAUSE_S
    while True:
        yield random.uniform(pause_s / 2, pause_s)
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
