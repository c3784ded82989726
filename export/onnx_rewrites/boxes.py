"""Boxes: which part of a value is read.

A box names, for some axes, the indices that are read, ascending; of every other axis all are. The empty box is the
whole value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import combinations

Box = tuple[tuple[int, tuple[int, ...]], ...]

WHOLE: Box = ()
MOST_BOXES = 4  # of one value; more are merged into the whole


def box(indices: Mapping[int, Sequence[int]]) -> Box:
    """The box with these indices on these axes."""
    return tuple(sorted((axis, tuple(chosen)) for axis, chosen in indices.items()))


def ascending(demand: Box) -> Box:
    """The same part, each index once and in ascending order."""
    return tuple((axis, tuple(sorted(set(chosen)))) for axis, chosen in demand)


def covers(outer: Box, inner: Box) -> bool:
    """Whether `outer` holds all of `inner`."""
    chosen = dict(inner)
    return all(axis in chosen and set(chosen[axis]) <= set(indices) for axis, indices in outer)


def hull(left: Box, right: Box) -> Box:
    """The smallest box that holds both."""
    first, second = dict(left), dict(right)
    return box({axis: sorted({*first[axis], *second[axis]}) for axis in first.keys() & second.keys()})


def merge(boxes: Iterable[Box], share: Callable[[Box], float], clean: Callable[[Box], Box]) -> list[Box]:
    """Fewer boxes that hold all the given ones; `share` is the part of the value that a box holds.

    Two boxes become their hull where that holds no more than the two together. Boxes that add up to the whole value
    become the whole.
    """
    merged = list(dict.fromkeys(clean(ascending(demand)) for demand in boxes))
    again = True
    while again and WHOLE not in merged:
        again = False
        for left, right in combinations(merged, 2):
            together = clean(hull(left, right))
            if share(together) <= share(left) + share(right) + 1e-9:
                merged = [*dict.fromkeys([*(old for old in merged if old not in (left, right)), together])]
                again = True
                break
    whole = WHOLE in merged or len(merged) > MOST_BOXES or sum(map(share, merged)) >= 1 - 1e-9
    return [WHOLE] if whole else merged
