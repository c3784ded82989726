"""Labels the connected components of a mask, here called parts, and bounds a part.

Libraries for this are large or wrong (docs/decisions.md, Libraries weighed).
"""

import numpy as np
from numpy.typing import NDArray

Mask = NDArray[np.bool_]
Parts = NDArray[np.intp]


def bounds(mask: Mask) -> tuple[slice, slice]:
    """The rows and columns of the bounding box of a mask (h, w) that is not empty."""
    rows, columns = (np.flatnonzero(mask.any(axis=axis)) for axis in (1, 0))
    return slice(int(rows[0]), int(rows[-1]) + 1), slice(int(columns[0]), int(columns[-1]) + 1)


def label(mask: Mask) -> tuple[Parts, int]:
    """Mask (h, w) -> the part number of every pixel (h, w), from 1, 0 outside; the number of parts. Diagonals connect.

    A run is a sequence of adjacent pixels in a row. Each run takes the smallest number of the runs that touch it, until
    no number changes (Shiloach and Vishkin, An O(log n) Parallel Connectivity Algorithm, 1982).
    """
    height, width = mask.shape
    stride = width + 2  # a margin on both sides, so that no run continues in the next row
    padded = np.zeros((height, stride), dtype=np.int8)
    padded[:, 1:-1] = mask
    steps = np.diff(padded.ravel())
    starts, ends = np.flatnonzero(steps == 1) + 1, np.flatnonzero(steps == -1) + 1  # ends exclusive
    first = np.searchsorted(ends, starts + stride)  # first run of the next row that touches this run
    last = np.searchsorted(starts, ends + stride, side="right")  # exclusive
    touching = np.maximum(last - first, 0)
    # Each pair of touching runs: `above` and `below` are the numbers of its runs.
    above = np.repeat(np.arange(len(starts)), touching)
    below = np.arange(len(above)) - np.repeat(np.cumsum(touching) - touching, touching) + np.repeat(first, touching)
    root = np.arange(len(starts))  # of each run: the smallest number of a run that is known to be connected to it
    while True:
        lower = np.minimum(root[above], root[below])
        joined = root.copy()
        for runs in (above, below):
            np.minimum.at(joined, root[runs], lower)
        joined = joined[joined]
        if np.array_equal(joined, root):
            break
        root = joined
    numbers = np.unique(root, return_inverse=True)[1] + 1  # the part of each run
    changes = np.zeros(height * stride + 1, dtype=np.intp)
    changes[starts] += numbers
    changes[ends] -= numbers
    labels = np.cumsum(changes[:-1]).reshape(height, stride)[:, 1:-1]
    return labels, int(numbers.max(initial=0))
