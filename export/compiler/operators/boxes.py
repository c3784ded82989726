"""A box is a part of a value: ascending indices of some axes, and all rows of the other axes.

Negative indices are used on free axes only. They count from the end: -1 is the last row of an input of any length.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import combinations

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


def merge(boxes: Iterable[Box], share: Callable[[Box], float], canonical: Callable[[Box], Box]) -> list[Box]:
    """The boxes without duplicates; two boxes become their hull if it is no larger than the two together.

    share: the fraction of the value that a box covers. canonical: see `demand_rules`.
    """
    merged = list(dict.fromkeys(canonical(ascending(demand)) for demand in boxes))
    again = True
    while again and WHOLE not in merged:
        again = False
        for left, right in combinations(merged, 2):
            joined = canonical(hull(left, right))
            if share(joined) <= share(left) + share(right) + 1e-9:
                merged = [*dict.fromkeys([*(other for other in merged if other not in (left, right)), joined])]
                again = True
                break
    is_entire = WHOLE in merged or len(merged) > MOST_BOXES or sum(map(share, merged)) >= 1 - 1e-9
    return [WHOLE] if is_entire else merged
