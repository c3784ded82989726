"""Rules of operators that move elements.

In and out: see `rules`; `view` says how a box passes such an operator.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx_ir as ir

from export.compiler.graph.attributes import attribute_int
from export.compiler.graph.constants import constant
from export.compiler.graph.shapes import Dim, Shapes, same
from export.compiler.operators.boxes import WHOLE, Box, box
from export.compiler.operators.rules import Demand, Rule, clean, everything
from export.compiler.operators.view import Build, built, expanded, gathered, reshaped


def viewed(build: Build) -> Rule:
    """Of an operator with such a view."""
    return lambda shapes, node, index, demand: _moved(shapes, node, index, demand, build)


def _moved(shapes: Shapes, node: ir.Node, index: int, demand: Box, build: Build) -> Demand:
    value, resized = node.inputs[0], build in (reshaped, expanded)
    view = built(shapes, node, index, build) if demand != WHOLE or not resized else None
    if value is None or view is None:
        return everything(node)
    made, source = view.read(demand)
    read = clean(shapes, value, box(source))
    if not resized:
        return Demand(box(made), {**everything(node).inputs, 0: read})
    sizes = {axis: len(rows) for axis, rows in made.items()}
    if not made or shape_plan(shapes, node, node.outputs[index], sizes) is None:
        return everything(node)
    return Demand(box(made), {0: read})


def shape_plan(shapes: Shapes, node: ir.Node, value: ir.Value, chosen: Mapping[int, Dim]) -> list[Dim] | None:
    """The shape for a Reshape or an Expand that makes rows of `value`, so many of an axis; None if it is not known.

    Of a Reshape a single free dimension becomes -1, as does the only one that is no size of a graph input. An Expand
    keeps what it does not repeat.
    """
    dims = shapes.dims(value)
    if node.op_type == "Expand":
        return _expand_plan(shapes, node, dims, chosen)
    sizes = [chosen.get(axis, dim) for axis, dim in enumerate(dims)]
    free = [position for position, dim in enumerate(sizes) if not isinstance(dim, int)]
    unknown = [position for position in free if shapes.source(sizes[position]) is None]
    if len(unknown) > 1:
        return None
    if len(free) == 1 or unknown:
        sizes[(unknown or free)[0]] = -1
    return sizes


def _expand_plan(shapes: Shapes, node: ir.Node, dims: Sequence[Dim], chosen: Mapping[int, Dim]) -> list[Dim] | None:
    source = shapes.dims(node.inputs[0]) if node.inputs[0] is not None else ()
    held = [1] * (len(dims) - len(source)) + [*source]
    repeated = [not same(own, dim) for own, dim in zip(held, dims, strict=True)]
    sizes = [chosen.get(axis, dim) if repeated[axis] else 1 for axis, dim in enumerate(dims)]
    known = all(isinstance(dim, int) or shapes.source(dim) is not None for dim in sizes)
    return sizes if known else None


def gather(shapes: Shapes, node: ir.Node, index: int, demand: Box) -> Demand:
    """By computed indices: of them, too, only those of the wanted rows."""
    value, indices = node.inputs[0], node.inputs[1]
    if value is None or indices is None:
        return everything(node)
    axis, width = attribute_int(node, "axis", 0) % shapes.rank(value), shapes.rank(indices)
    if constant(indices) is not None and width < 2:
        return _moved(shapes, node, index, demand, gathered)
    outer = {own: chosen for own, chosen in demand if own < axis}
    outer |= {own - width + 1: chosen for own, chosen in demand if own >= axis + width}
    inner = {own - axis: chosen for own, chosen in demand if axis <= own < axis + width}
    return Demand(demand, {0: clean(shapes, value, box(outer)), 1: box(inner)})


def scatter(shapes: Shapes, node: ir.Node, index: int, demand: Box) -> Demand:
    """Of the axes behind those that the indices choose, which data and updates share."""
    value, indices, updates = node.inputs
    if value is None or indices is None or updates is None:
        return everything(node)
    chosen, width = shapes.dims(indices)[-1], shapes.rank(indices) - 1
    if not isinstance(chosen, int):
        return everything(node)
    kept = {axis: rows for axis, rows in demand if axis >= chosen}
    moved = {axis - chosen + width: rows for axis, rows in kept.items()}
    read = {0: clean(shapes, value, box(kept)), 1: WHOLE, 2: clean(shapes, updates, box(moved))}
    return Demand(box(kept), read)


def concat(shapes: Shapes, node: ir.Node, index: int, demand: Box) -> Demand:
    axis = attribute_int(node, "axis", 0) % shapes.rank(node.outputs[index])
    rest = {own: chosen for own, chosen in demand if own != axis}
    parts = [(k, value) for k, value in enumerate(node.inputs) if value is not None]
    every = Demand(box(rest), {k: clean(shapes, value, box(rest)) for k, value in parts})
    wanted = dict(demand).get(axis)
    if wanted is None:
        return every
    read = _joined(shapes, parts, axis, wanted)
    if read is None:
        return every
    return Demand(demand, {k: clean(shapes, value, box({**rest, axis: places})) for k, (value, places) in read.items()})


def _joined(
    shapes: Shapes, parts: Sequence[tuple[int, ir.Value]], axis: int, wanted: Sequence[int]
) -> dict[int, tuple[ir.Value, list[int]]] | None:
    """The places of each joined value that are the rows `wanted` of the whole; None if that depends on a size.

    The last row of past and new tokens is the last of the new, which are at least one.
    """
    back, left, start = max(wanted) < 0, list(wanted), 0
    read: dict[int, tuple[ir.Value, list[int]]] = {}
    for position, value in reversed(parts) if back else parts:
        dim = shapes.dims(value)[axis]
        if not isinstance(dim, int):
            if left != [-1 - start] or not back or not shapes.is_positive(dim):
                return None
            return {position: (value, [-1]), **read}
        mine = [place for place in left if (-start - dim <= place if back else place < start + dim)]
        if mine:
            read = {position: (value, [place + start + dim if back else place - start for place in mine]), **read}
        left = [place for place in left if place not in mine]
        start += dim
        if not left:
            return read
    return None
