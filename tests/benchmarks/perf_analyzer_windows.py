"""Loads of perf_analyzer in short windows. On a busy machine a short window may end without an answer."""

from collections.abc import Callable
from typing import TypeVar

from benchmarks.load.by_perf_analyzer import GAP
from benchmarks.load.published_candidates import Failed

Result = TypeVar("Result")
SHORT_S, LONG_S = 2, 8


def without_gaps(run: Callable[[int], Result]) -> tuple[int, Result]:
    """Calls `run` with SHORT_S, and with LONG_S if a window had no answer. Returns the seconds and the result.

    Of a window without an answer `run` raises Failed, or the `output` of its result contains GAP.
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
