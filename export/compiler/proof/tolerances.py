"""The rule by which all answers are judged: relative to their size, and at most twice the original's own error.

In: answers that are expected and found, in any float type. Out: the error, and how large it may be.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

TOLERANCES = {"float64": 1e-10, "float32": 1e-5, "float16": 5e-3}  # relative to the answers' size
# Of the original's own error: in float32 a sound training reached 5e-5, a wrong reference is off by far more.
WORST = {"float32": 3e-4, "float16": 5e-2}
FILL = 1e8  # networks write larger numbers into masked places


def allowed(tolerance: float, own: float) -> float:
    """`own`: the error of the original in the same precision."""
    return max(tolerance, 2 * own)


def size_of(array: NDArray[np.generic]) -> float:
    """The largest number; 1 where all are 0."""
    return float(np.abs(array.astype(np.float64)).max(initial=0.0)) or 1.0


def largest_error(expected: NDArray[np.generic], found: NDArray[np.generic]) -> float:
    """Absolute; 0 of no numbers."""
    return float(np.abs(expected.astype(np.float64) - found.astype(np.float64)).max(initial=0.0))


def relative_error(expected: NDArray[np.generic], found: NDArray[np.generic]) -> float:
    """The largest, relative to the largest number. What fills masked places would hide it and stands apart."""
    left, right = expected.astype(np.float64), found.astype(np.float64)
    filled = np.abs(left) >= FILL
    parts = [(left[part], right[part]) for part in (filled, ~filled) if part.any()]
    errors = [np.abs(known - new).max() / (np.abs(known).max() or 1.0) for known, new in parts]
    return float(np.max(errors))  # NaN stays
