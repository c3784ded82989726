"""Operators that only move elements: how axes, boxes and arrays of constants pass them.

In: a node and shapes. Out: a `View` of the node's first input, as runs of its axes that become axes of the output:

    Transpose (B, N, D) -> (B, D, N)       0 -> 0   2 -> 1   1 -> 2
    Reshape (B, N, D) -> (B, N, H, E)      0 -> 0   1 -> 1   2 -> 2 3       the smallest runs of equal size
    Gather, of axis 1 the number 3         0 -> 0   1 -> nothing, picks 3   2 -> 1
    Expand (N, 1) -> (B, N, M)             nothing -> 0   0 -> 1   1 -> 2
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from export.compiler.errors import Refused
from export.compiler.graph.attributes import attribute_int, permutation
from export.compiler.graph.constants import Array, integers
from export.compiler.graph.shapes import FAR, Dim, Shapes, agree, groups, same, slices
from export.compiler.operators.boxes import Box

Places = tuple[int, ...]

ALWAYS = {0, -1}  # rows of every axis
LARGEST_RUN = 1 << 22  # elements of a run that is followed index by index


@dataclass(frozen=True)
class Pick:
    """Rows of an axis. `places`: of rows of the output, None for all, the rows of the source; None if unknown.

    `numbers`: of all rows, where the node names them; negative from the axis' end.
    """

    places: Callable[[Places | None], Places | None]
    numbers: Places | None = None


UNKNOWN = Pick(lambda wanted: None)


@dataclass(frozen=True)
class Run:
    """Axes of the source that become the axes `made` of the output; with a `pick` a single axis of the source."""

    source: tuple[int, ...]
    made: tuple[int, ...]
    pick: Pick | None = None


Build = Callable[[Shapes, ir.Node, int], Sequence[Run] | None]  # of an output; None if too little is known


@dataclass(frozen=True)
class View:
    """`runs` are in the order of the output's axes; each axis of the source is in one of them."""

    node: ir.Node
    before: Sequence[Dim]
    after: Sequence[Dim]
    runs: tuple[Run, ...]

    @property
    def picks(self) -> dict[int, Pick]:
        """By the source's axes."""
        return {run.source[0]: run.pick for run in self.runs if run.pick is not None}

    def place(self, axis: int) -> int | None:
        """The output's axis with the elements of this axis of the source, one by one; None if there is none."""
        run = next(run for run in self.runs if axis in run.source)
        if run.pick is not None:
            return None
        wide = _wide(self.before, run.source), _wide(self.after, run.made)
        if wide == ([], []):
            wide = [*run.source], [*run.made]
        return wide[1][0] if wide[0] == [axis] and len(wide[1]) == 1 else None

    def read(self, wanted: Box) -> tuple[dict[int, Places], dict[int, Places]]:
        """Of a box of the output what can be made alone, and the source's part for it. An unknown pick stays whole."""
        asked = dict(wanted)
        places = {axis: pick.places(asked.get(made)) for axis, made, pick in self._picked()}
        known = None not in places.values()
        made: dict[int, Places] = {}
        source: dict[int, Places] = {}
        for run in self.runs:
            chosen = {axis: asked[axis] for axis in run.made if axis in asked}
            if run.pick is not None:
                picked = places[run.source[0]]
                part = {run.source[0]: picked} if known and picked is not None else None
            else:
                part = _through(self.before, self.after, run, chosen) if chosen else {}
            if part is not None:
                made |= chosen
                source |= part
        return made, source

    def _picked(self) -> Iterator[tuple[int, int, Pick]]:
        for run in self.runs:
            if run.pick is not None:
                yield run.source[0], run.made[0] if run.made else -1, run.pick

    def forward(self, array: Array) -> Array:
        """An array along the source's axes, of size 1 where it is alike, along the output's. Raises Refused."""
        for axis, _, pick in self._picked():
            if array.shape[axis] > 1:
                places = pick.places(None)
                if places is None:
                    raise Refused.at(self.node, "picks channels that are not known")
                array = np.take(array, places, axis=axis)
        return self._moved(array, self.runs, self.before, self.after)

    def backward(self, array: Array, rest: float = 0.0) -> Array:
        """An array along the output's axes along the source's; `rest`: where the node picks nothing. Raises Refused."""
        runs = sorted((Run(run.made, run.source, run.pick) for run in self.runs), key=lambda run: run.made)
        array = self._moved(array, runs, self.after, self.before)
        for axis, _, pick in self._picked():
            places, size = pick.places(None), self.before[axis]
            if places is None or len({*places}) < len(places):
                raise Refused.at(self.node, "expected known places of one axis")
            if not isinstance(size, int):
                raise Refused.at(self.node, "picks of a free axis")
            array = _placed(array, axis, places, size, rest)
        return array

    def _moved(self, array: Array, runs: Sequence[Run], before: Sequence[Dim], after: Sequence[Dim]) -> Array:
        wide: list[int] = []
        made: list[int] = []
        for run in runs:
            held, left = [array.shape[axis] for axis in run.source], [before[axis] for axis in run.source]
            right = [after[axis] for axis in run.made]
            sizes = [size for size in left if isinstance(size, int)], [size for size in right if isinstance(size, int)]
            if max(held, default=1) == 1:
                sizes = held, [1] * len(right)
            elif len(left) == len(right) == 1 and (run.pick is not None or same(left[0], right[0])):
                sizes = held, held
            elif len(sizes[0]) < len(left) or len(sizes[1]) < len(right):
                raise Refused.at(self.node, "joins the channels with a free dimension")
            elif run.pick is not None or np.prod(sizes[0]) != np.prod(sizes[1]):
                raise Refused.at(self.node, "joins the channels with others")
            wide += sizes[0]
            made += sizes[1]
        order = [axis for run in runs for axis in run.source]
        return np.broadcast_to(array.transpose(order), wide).reshape(made)


def _placed(array: Array, axis: int, places: Places, size: int, rest: float) -> Array:
    whole = np.full([size if own == axis else wide for own, wide in enumerate(array.shape)], rest)
    whole[(slice(None),) * axis + ([*places],)] = array
    return whole


def _wide(dims: Sequence[Dim], axes: Sequence[int]) -> list[int]:
    return [axis for axis in axes if not same(dims[axis], 1)]


def _through(
    before: Sequence[Dim], after: Sequence[Dim], run: Run, chosen: Mapping[int, Places]
) -> dict[int, Places] | None:
    """The box of a run's source with the elements `chosen` of the axes that it makes; None without such a box."""
    left, right = _wide(before, run.source), _wide(after, run.made)
    if not left:
        return {}  # repeated
    if len(left) == len(right) == 1 and list(chosen) == right:
        return {left[0]: chosen[right[0]]} if agree(after[right[0]], before[left[0]]) else None
    if right and same(before[left[0]], after[right[0]]) and right[0] not in chosen:
        left, right = left[1:], right[1:]
    sizes, ends = [before[axis] for axis in left], [after[axis] for axis in right]
    old, new = [size for size in sizes if isinstance(size, int)], [size for size in ends if isinstance(size, int)]
    free = len(old) < len(sizes) or len(new) < len(ends)
    if not left or free or not set(chosen) <= set(right) or np.prod(old) != np.prod(new) or np.prod(new) > LARGEST_RUN:
        return None
    flat = np.arange(int(np.prod(new))).reshape(new)
    for position, axis in enumerate(right):
        if axis in chosen:
            flat = np.take(flat, chosen[axis], axis=position)
    flat = flat.ravel()
    picked = [list(dict.fromkeys(column.tolist())) for column in np.unravel_index(flat, old)]
    grid = np.meshgrid(*picked, indexing="ij")
    if grid[0].size != flat.size or not (np.ravel_multi_index([axis.ravel() for axis in grid], old) == flat).all():
        return None
    return {axis: tuple(indices) for axis, indices in zip(left, picked, strict=True)}


def built(shapes: Shapes, node: ir.Node, index: int, build: Build) -> View | None:
    """Of the output `index`. Raises Refused if a rank is unknown."""
    source, out = node.inputs[0] if node.inputs else None, node.outputs[index]
    if source is None:
        return None
    before, after = shapes.dims(source), shapes.dims(out)
    runs = build(shapes, node, index)
    return View(node, before, after, tuple(runs)) if runs is not None else None


def transposed(shapes: Shapes, node: ir.Node, index: int) -> list[Run]:
    order = permutation(node, shapes.rank(node.outputs[index]))
    return [Run((axis,), (made,)) for made, axis in enumerate(order)]


def reshaped(shapes: Shapes, node: ir.Node, index: int) -> list[Run]:
    before, after = _dims(shapes, node, index)
    whole = [(list(range(len(before))), list(range(len(after))))]
    return [Run(tuple(left), tuple(right)) for left, right in groups(shapes, before, after) or whole]


def _dims(shapes: Shapes, node: ir.Node, index: int) -> tuple[Sequence[Dim], Sequence[Dim]]:
    source = node.inputs[0]
    return shapes.dims(source) if source is not None else (), shapes.dims(node.outputs[index])


def expanded(shapes: Shapes, node: ir.Node, index: int) -> list[Run]:
    before, after = _dims(shapes, node, index)
    new = len(after) - len(before)
    return [Run((axis - new,) if axis >= new else (), (axis,)) for axis in range(len(after))]


def tiled(shapes: Shapes, node: ir.Node, index: int) -> list[Run]:
    """Axes of equal size are not repeated."""
    before, after = _dims(shapes, node, index)
    repeated = {axis: UNKNOWN for axis, dim in enumerate(before) if not same(dim, after[axis])}
    return _picking(len(before), repeated)


def _picking(rank: int, picks: Mapping[int, Pick]) -> list[Run]:
    return [Run((axis,), (axis,), picks.get(axis)) for axis in range(rank)]


def gathered(shapes: Shapes, node: ir.Node, index: int) -> list[Run] | None:
    """By indices of any rank: a number takes its axis away."""
    indices, rank = node.inputs[1], len(_dims(shapes, node, index)[0])
    if indices is None:
        return None
    axis, width = attribute_int(node, "axis", 0) % rank, shapes.rank(indices)
    numbers, flat = integers(indices), indices_of(shapes, node)

    def places(wanted: Places | None) -> Places | None:
        if flat is None or wanted is None:
            return None if flat is None else tuple(flat)
        return tuple(flat[row] for row in wanted)

    pick = Pick(places, tuple(numbers) if numbers is not None and width < 2 else None)
    outer = [Run((own,), (own,)) for own in range(axis)]
    behind = [Run((own,), (own - 1 + width,)) for own in range(axis + 1, rank)]
    return [*outer, Run((axis,), tuple(range(axis, axis + width)), pick), *behind]


def indices_of(shapes: Shapes, node: ir.Node) -> list[int] | None:
    """The indices of a Gather; None if unknown, of two axes, or if their guard cannot be built.

    On a free axis 0 and -1 always exist; any other index has to be alone, and `Materialiser` guards it.
    """
    value, indices = node.inputs[0], node.inputs[1]
    known = integers(indices)
    if value is None or indices is None or known is None or shapes.rank(indices) > 1:
        return None
    dim = shapes.dims(value)[attribute_int(node, "axis", 0)]
    if isinstance(dim, int):
        return [number % dim for number in known] if all(-dim <= number < dim for number in known) else None
    guarded = shapes.rank(indices) == 0 and shapes.is_known(dim)
    return known if guarded or set(known) <= ALWAYS else None


def sliced(shapes: Shapes, node: ir.Node, index: int) -> list[Run] | None:
    before, after = _dims(shapes, node, index)
    cuts = slices(node, len(before))
    if cuts is None:  # sizes that differ tell the axes, if no step turns them
        steps = [*node.inputs[4:], None][0]
        if steps is not None and min(integers(steps) or [0]) < 1:
            return None
        return _picking(len(before), {axis: UNKNOWN for axis, dim in enumerate(before) if not same(dim, after[axis])})
    picks = {}
    for axis, cut in cuts.items():
        if cut[0] == 0 and cut[2] == 1 and same(before[axis], after[axis]):
            continue  # TensorFlow's exporter names every axis

        def places(wanted: Places | None, axis: int = axis, cut: tuple[int, int, int] = cut) -> Places | None:
            return _cut_places(shapes, before[axis], after[axis], cut, wanted)

        picks[axis] = Pick(places, (cut[0],) if cut[2] == after[axis] == 1 else None)
    return _picking(len(before), picks)


def _cut_places(
    shapes: Shapes, before: Dim, after: Dim, cut: tuple[int, int, int], wanted: Places | None
) -> Places | None:
    """The rows of the source that are the rows `wanted` of a Slice, by default all; None if their number is free."""
    start, end, step = cut
    if isinstance(before, int):
        every = range(before)[slice(start, None if step < 0 and end < -before else end, step)]
        return tuple(every[place] for place in wanted) if wanted is not None else tuple(every)
    if step < 1:
        return None
    if wanted is None:
        rows = range(start, 0) if start < 0 and end >= FAR else range(start, end) if 0 <= start < end else range(0)
        exact = isinstance(after, int) or shapes.is_known(before)
        few = 0 < len(rows) <= max(shapes.nominal(before) // 2, 1)
        return tuple(rows) if exact and few and step == 1 else None
    if min(wanted) >= 0 and start == 0 < end:  # other cuts of a short axis may be empty
        return tuple(step * place for place in wanted)
    return wanted if max(wanted) < 0 and start <= 0 and end >= FAR and step == 1 else None


def split(shapes: Shapes, node: ir.Node, index: int) -> list[Run] | None:
    rank = shapes.rank(node.outputs[index])
    axis = attribute_int(node, "axis", 0) % rank
    sizes = [shapes.static(out, axis) for out in node.outputs[: index + 1]]
    known = [size for size in sizes if size is not None]
    if len(known) < len(sizes):
        return None
    start = sum(known[:index])

    def places(wanted: Places | None) -> Places | None:
        return tuple(start + row for row in (range(known[index]) if wanted is None else wanted))

    return _picking(rank, {axis: Pick(places)})
