"""A box is the part of a value that is read: ascending indices of some axes, all of the others.

Negative indices count from the end, on free axes alone: -1 is the last row of an input of any length.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import combinations

Box = tuple[tuple[int, tuple[int, ...]], ...]

WHOLE: Box = ()
MOST_BOXES = 4  # per value; more become the whole value


def box(indices: Mapping[int, Sequence[int]]) -> Box:
    return tuple(sorted((axis, tuple(chosen)) for axis, chosen in indices.items()))


def ascending(demand: Box) -> Box:
    return tuple((axis, tuple(sorted(set(chosen)))) for axis, chosen in demand)


def covers(outer: Box, inner: Box) -> bool:
    chosen = dict(inner)
    return all(axis in chosen and set(chosen[axis]) <= set(indices) for axis, indices in outer)


def hull(left: Box, right: Box) -> Box:
    first, second = dict(left), dict(right)
    return box({axis: sorted({*first[axis], *second[axis]}) for axis in first.keys() & second.keys()})


def merge(boxes: Iterable[Box], share: Callable[[Box], float], canonical: Callable[[Box], Box]) -> list[Box]:
    """Two boxes become their hull if it is no larger than both together.

    `share` is the fraction of the value that a box covers.
    """
    merged = list(dict.fromkeys(canonical(ascending(demand)) for demand in boxes))
    again = True
    while again and WHOLE not in merged:
        again = False
        for left, right in combinations(merged, 2):
            together = canonical(hull(left, right))
            if share(together) <= share(left) + share(right) + 1e-9:
                merged = [*dict.fromkeys([*(old for old in merged if old not in (left, right)), together])]
                again = True
                break
    whole = WHOLE in merged or len(merged) > MOST_BOXES or sum(map(share, merged)) >= 1 - 1e-9
    return [WHOLE] if whole else merged
