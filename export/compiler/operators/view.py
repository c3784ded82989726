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
from export.compiler.graph.constants import Array
from export.compiler.graph.shapes import Dim, Shapes, agree, same
from export.compiler.operators.boxes import Box

Places = tuple[int, ...]

LARGEST_RUN = 1 << 22  # elements of a run that is followed index by index


@dataclass(frozen=True)
class Pick:
    """Rows of an axis. `places`: of rows of the output, None for all, the rows of the source; None if unknown.

    `numbers`: of all rows, where the node names them; negative from the axis' end.
    """

    places: Callable[[Places | None], Places | None]
    numbers: Places | None = None


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
        left, right = wide(self.before, run.source), wide(self.after, run.made)
        if not left and not right:
            left, right = [*run.source], [*run.made]
        return right[0] if left == [axis] and len(right) == 1 else None

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


def wide(dims: Sequence[Dim], axes: Sequence[int]) -> list[int]:
    return [axis for axis in axes if not same(dims[axis], 1)]


def _through(
    before: Sequence[Dim], after: Sequence[Dim], run: Run, chosen: Mapping[int, Places]
) -> dict[int, Places] | None:
    """The box of a run's source with the elements `chosen` of the axes that it makes; None without such a box."""
    left, right = wide(before, run.source), wide(after, run.made)
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
