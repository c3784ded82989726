"""Operators that move elements: their views, and the rules that follow from them.

In and out: see `view` and `demand_rules`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx_ir as ir

from export.compiler.graph.attributes import attribute_int, given, optional, permutation
from export.compiler.graph.constants import constant, integers
from export.compiler.graph.shapes import FAR, Dim, Shapes, groups, same, slices
from export.compiler.operators.boxes import WHOLE, Box, box
from export.compiler.operators.demand_rules import Demand, Rule, canonical, everything
from export.compiler.operators.view import Build, Pick, Places, Run, built

ALWAYS = {0, -1}  # rows of every axis
UNKNOWN = Pick(lambda wanted: None)


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
        steps = optional(node, 4)
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


def viewed(build: Build) -> Rule:
    """Of an operator with such a view."""
    return lambda shapes, node, index, demand: _moved(shapes, node, index, demand, build)


def _moved(shapes: Shapes, node: ir.Node, index: int, demand: Box, build: Build) -> Demand:
    resized = build in (reshaped, expanded)
    view = built(shapes, node, index, build) if demand != WHOLE or not resized else None
    if view is None:
        return everything(node)
    made, source = view.read(demand)
    read = canonical(shapes, given(node, 0), box(source))
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
    return sizes if all(map(shapes.is_known, sizes)) else None


def gather(shapes: Shapes, node: ir.Node, index: int, demand: Box) -> Demand:
    """By computed indices: of them, too, only those of the wanted rows."""
    value, indices = given(node, 0), given(node, 1)
    axis, width = attribute_int(node, "axis", 0) % shapes.rank(value), shapes.rank(indices)
    if constant(indices) is not None and width < 2:
        return _moved(shapes, node, index, demand, gathered)
    outer = {own: chosen for own, chosen in demand if own < axis}
    outer |= {own - width + 1: chosen for own, chosen in demand if own >= axis + width}
    inner = {own - axis: chosen for own, chosen in demand if axis <= own < axis + width}
    return Demand(demand, {0: canonical(shapes, value, box(outer)), 1: box(inner)})


def gather_nd(shapes: Shapes, node: ir.Node, index: int, demand: Box) -> Demand:
    """Places (batch, ..., w) of `data` (batch, w axes, ...): of them, too, only those of the wanted rows."""
    data, places = given(node, 0), given(node, 1)
    batch, picked, width = attribute_int(node, "batch_dims", 0), shapes.dims(places)[-1], shapes.rank(places) - 1
    if not isinstance(picked, int):
        return everything(node)
    rows = {own: chosen for own, chosen in demand if own < width}
    held = {own: chosen for own, chosen in rows.items() if own < batch}
    held |= {own - width + batch + picked: chosen for own, chosen in demand if own >= width}
    return Demand(demand, {0: canonical(shapes, data, box(held)), 1: box(rows)})


def gather_elements(shapes: Shapes, node: ir.Node, index: int, demand: Box) -> Demand:
    """Along the other axes than its own, on which `data` may have more rows, each place reads its row."""
    data, places = given(node, 0), given(node, 1)
    axis = attribute_int(node, "axis", 0) % shapes.rank(data)
    rows = {own: chosen for own, chosen in demand if own != axis}
    if not all(same(shapes.dims(data)[own], shapes.dims(places)[own]) for own in rows):
        return everything(node)
    return Demand(demand, {0: box(rows), 1: demand})


def scatter_elements(shapes: Shapes, node: ir.Node, index: int, demand: Box) -> Demand:
    """Along the other axes than its own, on which all its inputs have as many rows, each row is of itself."""
    data, *others = (given(node, position) for position in range(3))
    axis = attribute_int(node, "axis", 0) % shapes.rank(data)
    rows = {own: chosen for own, chosen in demand if own != axis}
    if not all(same(shapes.dims(data)[own], shapes.dims(other)[own]) for own in rows for other in others):
        return everything(node)
    return Demand(box(rows), dict.fromkeys(range(3), box(rows)))


def scatter(shapes: Shapes, node: ir.Node, index: int, demand: Box) -> Demand:
    """Of the axes behind those that the indices choose, which data and updates share."""
    value, indices, updates = (given(node, position) for position in range(3))
    chosen, width = shapes.dims(indices)[-1], shapes.rank(indices) - 1
    if not isinstance(chosen, int):
        return everything(node)
    kept = {axis: rows for axis, rows in demand if axis >= chosen}
    moved = {axis - chosen + width: rows for axis, rows in kept.items()}
    read = {0: canonical(shapes, value, box(kept)), 1: WHOLE, 2: canonical(shapes, updates, box(moved))}
    return Demand(box(kept), read)


def concat(shapes: Shapes, node: ir.Node, index: int, demand: Box) -> Demand:
    axis = attribute_int(node, "axis", 0) % shapes.rank(node.outputs[index])
    rest = {own: chosen for own, chosen in demand if own != axis}
    parts = [(k, value) for k, value in enumerate(node.inputs) if value is not None]
    every = Demand(box(rest), {k: canonical(shapes, value, box(rest)) for k, value in parts})
    wanted = dict(demand).get(axis)
    if wanted is None:
        return every
    read = _joined(shapes, parts, axis, wanted)
    if read is None:
        return every
    return Demand(
        demand, {k: canonical(shapes, value, box({**rest, axis: places})) for k, (value, places) in read.items()}
    )


def _joined(
    shapes: Shapes, parts: Sequence[tuple[int, ir.Value]], axis: int, wanted: Sequence[int]
) -> dict[int, tuple[ir.Value, list[int]]] | None:
    """The places of each joined value that are the rows `wanted` of the whole; None if that depends on a size.

    The last row of past and new tokens is the last of the new, which are at least one.
    """
    if min(wanted) < 0 <= max(wanted):
        return None
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
