"""A box is a part of a value: ascending indices of some axes, and all rows of the other axes.

Negative indices are used on free axes only. They count from the end: -1 is the last row of an input of any length.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

Box = tuple[tuple[int, tuple[int, ...]], ...]

WHOLE: Box = ()  # the entire value
MOST_BOXES = 4  # of a value; more boxes are replaced by the entire value


def box(indices: Mapping[int, Sequence[int]]) -> Box:
    return tuple(sorted((axis, tuple(rows)) for axis, rows in indices.items()))


def ascending(demand: Box) -> Box:
    """The box with its indices in ascending order, each index once."""
    return tuple((axis, tuple(sorted(set(rows)))) for axis, rows in demand)


def covers(outer: Box, inner: Box) -> bool:
    """Whether the box `inner` lies in the box `outer`."""
    rows_of_inner = dict(inner)
    return all(axis in rows_of_inner and set(rows_of_inner[axis]) <= set(rows) for axis, rows in outer)


def hull(left: Box, right: Box) -> Box:
    """The smallest box that covers both."""
    left_rows, right_rows = dict(left), dict(right)
    shared_axes = left_rows.keys() & right_rows.keys()
    return box({axis: sorted({*left_rows[axis], *right_rows[axis]}) for axis in shared_axes})
