"""Loads of perf_analyzer in short windows. On a busy machine a short window may end without an answer."""

from collections.abc import Callable
from typing import TypeVar

from benchmarks.load.by_perf_analyzer import GAP
from benchmarks.load.errors import Failed

Result = TypeVar("Result")
SHORT_S, LONG_S = 2, 8


def without_gaps(run: Callable[[int], Result]) -> tuple[int, Result]:
    """Runs loads of SHORT_S each; if a window was without answers, of LONG_S each. Returns seconds and result.

    `run` raises Failed for such a window, or its result's `output` tells it.
    """
    try:
        result = run(SHORT_S)
    except Failed as error:
        if str(error) != GAP:
            raise
    else:
        if GAP not in getattr(result, "output", ""):
            return SHORT_S, result
    return LONG_S, run(LONG_S)
