"""How an operator that only moves elements maps axes, boxes and constants from its input to its output, and back.

In: a node and shapes. Out: a `View`: runs of the input's axes, and the axes of the output that they become.

    Transpose (B, N, D) -> (B, D, N)       0 -> 0   2 -> 1   1 -> 2
    Reshape (B, N, D) -> (B, N, H, E)      0 -> 0   1 -> 1   2 -> 2 3       the shortest runs of equal size
    Gather, row 3 of axis 1                0 -> 0   1 -> nothing, picks 3   2 -> 1
    Expand (N, 1) -> (B, N, M)             nothing -> 0   0 -> 1   1 -> 2
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from export.compiler.errors import Refused
from export.compiler.graph.constants import Array
from export.compiler.graph.symbolic_shapes import Dim, Shapes, agree, same
from export.compiler.operators.boxes import Box

Places = tuple[int, ...]

LARGEST_RUN = 1 << 22  # elements of a run that is followed index by index


@dataclass(frozen=True)
class Pick:
    """The rows of an axis that an operator picks.

    places: a function from rows of the output, or None for all rows, to rows of the source; None if they are unknown.
    numbers: all picked rows as the node writes them, negative from the end; None if it does not write them.
    """

    places: Callable[[Places | None], Places | None]
    numbers: Places | None = None


@dataclass(frozen=True)
class Run:
    """Axes of the source that become the axes `made` of the output. With a `pick` the source has a single axis."""

    source: tuple[int, ...]
    made: tuple[int, ...]
    pick: Pick | None = None


Build = Callable[[Shapes, ir.Node, int], Sequence[Run] | None]  # the runs of an output; None if too little is known


@dataclass(frozen=True)
class View:
    """Shapes of the source (`before`) and of the output (`after`), and runs in the order of the output's axes.

    Each axis of the source is in a single run.
    """

    node: ir.Node
    before: Sequence[Dim]
    after: Sequence[Dim]
    runs: tuple[Run, ...]

    @property
    def picks(self) -> dict[int, Pick]:
        """The picks by axes of the source."""
        return {run.source[0]: run.pick for run in self.runs if run.pick is not None}

    def place(self, axis: int) -> int | None:
        """The axis of the output that is this axis of the source, row by row; None if there is no such axis."""
        run = next(run for run in self.runs if axis in run.source)
        if run.pick is not None:
            return None
        left, right = long_axes(self.before, run.source), long_axes(self.after, run.made)
        if not left and not right:
            left, right = [*run.source], [*run.made]
        return right[0] if left == [axis] and len(right) == 1 else None

    def read(self, wanted: Box) -> tuple[dict[int, Places], dict[int, Places]]:
        """The indices of the output that can be computed alone, and the indices of the source that they need.

        An axis stays entire if its pick is unknown, or if the wanted rows are no box of the source.
        """
        wanted_rows = dict(wanted)
        places = {
            run.source[0]: run.pick.places(wanted_rows.get(run.made[0]) if run.made else None)
            for run in self.runs
            if run.pick is not None
        }
        are_known = None not in places.values()
        made: dict[int, Places] = {}
        source: dict[int, Places] = {}
        for run in self.runs:
            rows = {axis: wanted_rows[axis] for axis in run.made if axis in wanted_rows}
            if run.pick is not None:
                picked = places[run.source[0]]
                source_rows = {run.source[0]: picked} if are_known and picked is not None else None
            else:
                source_rows = _through(self.before, self.after, run, rows) if rows else {}
            if source_rows is not None:
                made |= rows
                source |= source_rows
        return made, source

    def forward(self, array: Array) -> Array:
        """An array along the source's axes as an array along the output's axes.

        An axis of length 1 means that all its rows are equal. Raises Refused if the picked rows are unknown, or if rows
        that differ are joined with other axes.
        """
        for axis, pick in self.picks.items():
            if array.shape[axis] > 1:
                places = pick.places(None)
                if places is None:
                    raise Refused.at(self.node, "picks channels that are not known")
                array = np.take(array, places, axis=axis)
        return self._moved(array, self.runs, self.before, self.after)

    def backward(self, array: Array, rest: float = 0.0) -> Array:
        """An array along the output's axes as an array along the source's axes. Raises Refused, as `forward`.

        rest: the number in rows that the node does not pick.
        """
        runs = sorted((Run(run.made, run.source, run.pick) for run in self.runs), key=lambda run: run.made)
        array = self._moved(array, runs, self.after, self.before)
        for axis, pick in self.picks.items():
            places, size = pick.places(None), self.before[axis]
            if places is None or len({*places}) < len(places):
                raise Refused.at(self.node, "expected known places of one axis")
            if not isinstance(size, int):
                raise Refused.at(self.node, "picks of a free axis")
            array = _placed(array, axis, places, size, rest)
        return array

    def _moved(self, array: Array, runs: Sequence[Run], before: Sequence[Dim], after: Sequence[Dim]) -> Array:
        """The array with its axes moved and reshaped as the runs say, without their picks."""
        shape: list[int] = []
        new_shape: list[int] = []
        for run in runs:
            lengths, left = [array.shape[axis] for axis in run.source], [before[axis] for axis in run.source]
            right = [after[axis] for axis in run.made]
            sizes = [size for size in left if isinstance(size, int)], [size for size in right if isinstance(size, int)]
            if max(lengths, default=1) == 1:
                sizes = lengths, [1] * len(right)
            elif len(left) == len(right) == 1 and (run.pick is not None or same(left[0], right[0])):
                sizes = lengths, lengths
            elif len(sizes[0]) < len(left) or len(sizes[1]) < len(right):
                raise Refused.at(self.node, "joins the channels with a free dimension")
            elif run.pick is not None or np.prod(sizes[0]) != np.prod(sizes[1]):
                raise Refused.at(self.node, "joins the channels with others")
            shape += sizes[0]
            new_shape += sizes[1]
        order = [axis for run in runs for axis in run.source]
        return np.broadcast_to(array.transpose(order), shape).reshape(new_shape)


def _placed(array: Array, axis: int, places: Places, size: int, rest: float) -> Array:
    """An array with `size` rows along the axis: those of `array` at the places, `rest` elsewhere."""
    shape = list(array.shape)
    shape[axis] = size
    filled = np.full(shape, rest)
    filled[(slice(None),) * axis + ([*places],)] = array
    return filled


def long_axes(dims: Sequence[Dim], axes: Sequence[int]) -> list[int]:
    """The axes whose size is not 1."""
    return [axis for axis in axes if not same(dims[axis], 1)]


def _through(
    before: Sequence[Dim], after: Sequence[Dim], run: Run, chosen: Mapping[int, Places]
) -> dict[int, Places] | None:
    """The rows of a run's source that hold the rows `chosen` of the axes that it makes; None if they form no box."""
    left, right = long_axes(before, run.source), long_axes(after, run.made)
    if not left:
        return {}  # the output repeats a single row
    if len(left) == len(right) == 1 and list(chosen) == right:
        return {left[0]: chosen[right[0]]} if agree(after[right[0]], before[left[0]]) else None
    if right and same(before[left[0]], after[right[0]]) and right[0] not in chosen:
        left, right = left[1:], right[1:]
    old = [size for axis in left if isinstance(size := before[axis], int)]
    new = [size for axis in right if isinstance(size := after[axis], int)]
    has_free = len(old) < len(left) or len(new) < len(right)
    if not left or has_free or not set(chosen) <= set(right):
        return None
    if np.prod(old) != np.prod(new) or np.prod(new) > LARGEST_RUN:
        return None
    flat = np.arange(int(np.prod(new))).reshape(new)  # the index of each element in the run
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
    """The view that makes the output `index`; None if too little is known. Raises Refused if a rank is unknown."""
    source, out = node.inputs[0] if node.inputs else None, node.outputs[index]
    if source is None:
        return None
    before, after = shapes.dims(source), shapes.dims(out)
    runs = build(shapes, node, index)
    return View(node, before, after, tuple(runs)) if runs is not None else None
