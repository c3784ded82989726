"""The error of an answer, and its tolerance: relative to the largest number, or twice the original's own error.

In: expected and actual answers, of any float dtype. Out: the error, and how large it may be.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

TOLERANCES = {"float64": 1e-10, "float32": 1e-5, "float16": 5e-3}  # relative to an output's largest number
# Limits of the original's own error: a soundly trained float32 network reached 5e-5; a wrong reference exceeds them.
WORST = {"float32": 3e-4, "float16": 5e-2}
ROUNDING = 2e-3  # of float16, relative to the largest number
FILL = 1e8  # at least this large are the numbers that networks write into masked places


def allowed(tolerance: float, own: float) -> float:
    """The largest error that is accepted. `own`: the error of the original in the same precision."""
    return max(tolerance, 2 * own)


def is_finite(array: NDArray[np.generic]) -> bool:
    """Whether all numbers are finite."""
    return bool(np.isfinite(array.astype(np.float64)).all())


def size_of(array: NDArray[np.generic]) -> float:
    """The largest absolute value, to divide by; 1 where all are 0."""
    return float(np.abs(array.astype(np.float64)).max(initial=0.0)) or 1.0


def largest_error(expected: NDArray[np.generic], found: NDArray[np.generic]) -> float:
    """The largest absolute difference; 0 for empty arrays."""
    return float(np.abs(expected.astype(np.float64) - found.astype(np.float64)).max(initial=0.0))


def relative_error(expected: NDArray[np.generic], found: NDArray[np.generic]) -> float:
    """The largest difference relative to the largest number; NaN if a number is NaN. The arrays are not empty.

    Numbers of at least FILL are compared by themselves: beside them any other error would vanish.
    """
    left, right = expected.astype(np.float64), found.astype(np.float64)
    filled = np.abs(left) >= FILL
    parts = [(left[part], right[part]) for part in (filled, ~filled) if part.any()]
    errors = [np.abs(before - after).max() / (np.abs(before).max() or 1.0) for before, after in parts]
    return float(np.max(errors))


def alike(array: NDArray[np.generic], other: NDArray[np.generic]) -> bool:
    """Whether two answers of a trial run are equal up to float16's rounding."""
    if array.shape != other.shape or array.dtype.kind not in "fiub":
        return np.array_equal(array, other)
    return largest_error(array, other) <= ROUNDING * size_of(array)
