"""Operators that move elements: their views (see `view`) and their rules (see `demand_rules`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx_ir as ir

from export.compiler.graph.attributes import attribute_int, attribute_ints, given, optional, permutation
from export.compiler.graph.constants import constant, integers
from export.compiler.graph.runtime_sizes import shape_plan
from export.compiler.graph.symbolic_shapes import FAR, Dim, Shapes, groups, least, same, slices
from export.compiler.operators.boxes import WHOLE, Box, box
from export.compiler.operators.demand_rules import Demand, Rule, canonical, everything, partly, row_by_row
from export.compiler.operators.view import Build, Pick, Places, Run, built

UNKNOWN = Pick(lambda wanted: None)  # rows that are computed when the graph runs


def transposed(shapes: Shapes, node: ir.Node, index: int) -> list[Run]:
    """Transpose."""
    order = permutation(node, shapes.rank(node.outputs[index]))
    return [Run((axis,), (made,)) for made, axis in enumerate(order)]


def reshaped(shapes: Shapes, node: ir.Node, index: int) -> list[Run]:
    """Reshape and its kin: the shortest runs of equal size, or a single run of all axes."""
    before, after = _dims(shapes, node, index)
    single = [(list(range(len(before))), list(range(len(after))))]
    return [Run(tuple(left), tuple(right)) for left, right in groups(shapes, before, after) or single]


def _dims(shapes: Shapes, node: ir.Node, index: int) -> tuple[Sequence[Dim], Sequence[Dim]]:
    """The shapes of the first input and of the output."""
    source = node.inputs[0]
    return shapes.dims(source) if source is not None else (), shapes.dims(node.outputs[index])


def expanded(shapes: Shapes, node: ir.Node, index: int) -> list[Run]:
    """Expand, which may add axes at the front."""
    before, after = _dims(shapes, node, index)
    new = len(after) - len(before)
    return [Run((axis - new,) if axis >= new else (), (axis,)) for axis in range(len(after))]


def tiled(shapes: Shapes, node: ir.Node, index: int) -> list[Run]:
    """Tile. It does not repeat axes whose size stays."""
    before, after = _dims(shapes, node, index)
    repeated = {axis: UNKNOWN for axis, dim in enumerate(before) if not same(dim, after[axis])}
    return _picking(len(before), repeated)


def _picking(rank: int, picks: Mapping[int, Pick]) -> list[Run]:
    """Runs of an operator that keeps its axes and picks rows of some."""
    return [Run((axis,), (axis,), picks.get(axis)) for axis in range(rank)]


def gathered(shapes: Shapes, node: ir.Node, index: int) -> list[Run] | None:
    """Gather along an axis, which the axes of the indices replace: none if the index is a scalar."""
    indices, rank = node.inputs[1], len(_dims(shapes, node, index)[0])
    if indices is None:
        return None
    axis, indices_rank = attribute_int(node, "axis", 0) % rank, shapes.rank(indices)
    numbers, usable = integers(indices), indices_of(shapes, node)

    def places(wanted: Places | None) -> Places | None:
        if usable is None or wanted is None:
            return None if usable is None else tuple(usable)
        return tuple(usable[row] for row in wanted)

    pick = Pick(places, tuple(numbers) if numbers is not None and indices_rank < 2 else None)
    before = [Run((k,), (k,)) for k in range(axis)]
    after = [Run((k,), (k - 1 + indices_rank,)) for k in range(axis + 1, rank)]
    return [*before, Run((axis,), tuple(range(axis, axis + indices_rank)), pick), *after]


def indices_of(shapes: Shapes, node: ir.Node) -> list[int] | None:
    """The indices of a Gather that a cut may use, from the start of an axis of known size.

    None if the indices are computed, have two axes, or may not exist. On a free axis 0 and -1 always exist. Another
    index must be a scalar: `Materialiser` makes nodes that fail for inputs that are too short.
    """
    value, indices = node.inputs[0], node.inputs[1]
    numbers = integers(indices)
    if value is None or indices is None or numbers is None or shapes.rank(indices) > 1:
        return None
    dim = shapes.dims(value)[attribute_int(node, "axis", 0)]
    if isinstance(dim, int):
        return [number % dim for number in numbers] if all(-dim <= number < dim for number in numbers) else None
    can_be_guarded = shapes.rank(indices) == 0 and shapes.is_known(dim)
    return numbers if can_be_guarded or exist(numbers, dim) else None


def exist(rows: Sequence[int], size: Dim) -> bool:
    """Whether an axis that is not empty has these rows at any size: 0 and -1, of N + 3 also 1, 2, -2 and -3."""
    return all(-least(size) <= row < max(least(size), 1) for row in rows if row != -1)


def sliced(shapes: Shapes, node: ir.Node, index: int) -> list[Run] | None:
    """Slice. Starts and ends may be computed; the axes whose size changes are then the cut axes."""
    before, after = _dims(shapes, node, index)
    cuts = slices(node, len(before))
    if cuts is None:  # a negative step could reverse an axis whose size stays
        steps = optional(node, 4)
        if steps is not None and min(integers(steps) or [0]) < 1:
            return None
        return _picking(len(before), {axis: UNKNOWN for axis, dim in enumerate(before) if not same(dim, after[axis])})
    picks = {}
    for axis, cut in cuts.items():
        if cut[0] == 0 and cut[2] == 1 and same(before[axis], after[axis]):
            continue  # the axis stays entire; TensorFlow's exporter names such axes too

        def places(wanted: Places | None, axis: int = axis, cut: tuple[int, int, int] = cut) -> Places | None:
            return _cut_places(shapes, before[axis], after[axis], cut, wanted)

        picks[axis] = Pick(places, (cut[0],) if cut[2] == after[axis] == 1 else None)
    return _picking(len(before), picks)


def _cut_places(
    shapes: Shapes, before: Dim, after: Dim, cut: tuple[int, int, int], wanted: Places | None
) -> Places | None:
    """The rows of the source that are the rows `wanted` of a Slice along an axis, by default all its rows.

    None if they depend on a free size, or if listing all rows would be no gain.
    """
    start, end, step = cut
    if isinstance(before, int):
        rows = range(before)[slice(start, None if step < 0 and end < -before else end, step)]
        return tuple(rows[row] for row in wanted) if wanted is not None else tuple(rows)
    if step < 1:
        return None
    if wanted is None:
        rows = range(start, 0) if start < 0 and end >= FAR else range(start, end) if 0 <= start < end else range(0)
        is_exact = isinstance(after, int) or shapes.is_known(before)
        are_few = 0 < len(rows) <= max(shapes.nominal(before) // 2, 1)
        return tuple(rows) if is_exact and are_few and step == 1 else None
    if min(wanted) >= 0 and start == 0 < end:  # other cuts of a short axis may be empty
        return tuple(step * row for row in wanted)
    return wanted if max(wanted) < 0 and start <= 0 and end >= FAR and step == 1 else None


def split(shapes: Shapes, node: ir.Node, index: int) -> list[Run] | None:
    """Split. None if the sizes of the parts up to this output are free."""
    rank = shapes.rank(node.outputs[index])
    axis = attribute_int(node, "axis", 0) % rank
    sizes = [shapes.static(out, axis) for out in node.outputs[: index + 1]]
    static = [size for size in sizes if size is not None]
    if len(static) < len(sizes):
        return None
    start = sum(static[:index])

    def places(wanted: Places | None) -> Places | None:
        return tuple(start + row for row in (range(static[index]) if wanted is None else wanted))

    return _picking(rank, {axis: Pick(places)})


def viewed(build: Build) -> Rule:
    """The rule of an operator whose view `build` makes."""
    return lambda shapes, node, index, demand: _moved(shapes, node, index, demand, build)


def _moved(shapes: Shapes, node: ir.Node, index: int, demand: Box, build: Build) -> Demand:
    needs_shape = build in (reshaped, expanded)
    view = built(shapes, node, index, build) if demand != WHOLE or not needs_shape else None
    if view is None:
        return everything(node)
    made, source = view.read(demand)
    read = canonical(shapes, given(node, 0), box(source))
    if not needs_shape:
        return partly(node, box(made), {0: read})
    sizes = {axis: len(rows) for axis, rows in made.items()}
    if not made or shape_plan(shapes, node, sizes) is None:
        return everything(node)
    return Demand(box(made), {0: read})


def gather(shapes: Shapes, node: ir.Node, index: int, demand: Box) -> Demand:
    """Gather. Rows of constant indices follow from the view; of computed indices only the wanted ones are read."""
    value, indices = given(node, 0), given(node, 1)
    axis, indices_rank = attribute_int(node, "axis", 0) % shapes.rank(value), shapes.rank(indices)
    if constant(indices) is not None and indices_rank < 2:
        return _moved(shapes, node, index, demand, gathered)
    value_rows = {k: rows for k, rows in demand if k < axis}
    value_rows |= {k - indices_rank + 1: rows for k, rows in demand if k >= axis + indices_rank}
    index_rows = {k - axis: rows for k, rows in demand if axis <= k < axis + indices_rank}
    return Demand(demand, {0: canonical(shapes, value, box(value_rows)), 1: box(index_rows)})


def gather_nd(shapes: Shapes, node: ir.Node, index: int, demand: Box) -> Demand:
    """GatherND of data (batch, w axes, ...) at indices (batch, ..., w). Only indices of the wanted rows are read."""
    data, indices = given(node, 0), given(node, 1)
    batch, width = attribute_int(node, "batch_dims", 0), shapes.dims(indices)[-1]
    index_axes = shapes.rank(indices) - 1  # the axes of the output that come from the indices
    if not isinstance(width, int):
        return everything(node)
    index_rows = {axis: rows for axis, rows in demand if axis < index_axes}
    data_rows = {axis: rows for axis, rows in index_rows.items() if axis < batch}
    data_rows |= {axis - index_axes + batch + width: rows for axis, rows in demand if axis >= index_axes}
    return Demand(demand, {0: canonical(shapes, data, box(data_rows)), 1: box(index_rows)})


def gather_elements(shapes: Shapes, node: ir.Node, index: int, demand: Box) -> Demand:
    """GatherElements moves elements along `axis` only. An axis of which data has more rows than indices is not cut."""
    data, indices = given(node, 0), given(node, 1)
    axis = attribute_int(node, "axis", 0) % shapes.rank(data)
    rows = {k: chosen for k, chosen in demand if k != axis}
    if not all(same(shapes.dims(data)[k], shapes.dims(indices)[k]) for k in rows):
        return everything(node)
    return Demand(demand, {0: box(rows), 1: demand})


def scatter_elements(shapes: Shapes, node: ir.Node, index: int, demand: Box) -> Demand:
    """ScatterElements moves elements along `axis` only. Another axis is cut if all inputs have its size."""
    data, *others = (given(node, position) for position in range(3))
    axis = attribute_int(node, "axis", 0) % shapes.rank(data)
    rows = {k: chosen for k, chosen in demand if k != axis}
    if not all(same(shapes.dims(data)[k], shapes.dims(other)[k]) for k in rows for other in others):
        return everything(node)
    return Demand(box(rows), dict.fromkeys(range(3), box(rows)))


def scatter(shapes: Shapes, node: ir.Node, index: int, demand: Box) -> Demand:
    """ScatterND of data (w axes, ...) at indices (..., w). The axes behind the w axes, which the updates have, too, can
    be cut.
    """
    value, indices, updates = (given(node, position) for position in range(3))
    width, index_axes = shapes.dims(indices)[-1], shapes.rank(indices) - 1
    if not isinstance(width, int):
        return everything(node)
    rows = {axis: chosen for axis, chosen in demand if axis >= width}
    update_rows = {axis - width + index_axes: chosen for axis, chosen in rows.items()}
    read = {0: canonical(shapes, value, box(rows)), 1: WHOLE, 2: canonical(shapes, updates, box(update_rows))}
    return Demand(box(rows), read)


def concat(shapes: Shapes, node: ir.Node, index: int, demand: Box) -> Demand:
    """Concat. Inputs of which no row is wanted are not read."""
    axis = attribute_int(node, "axis", 0) % shapes.rank(node.outputs[index])
    other_rows = {k: rows for k, rows in demand if k != axis}
    parts = [(k, value) for k, value in enumerate(node.inputs) if value is not None]
    wanted = dict(demand).get(axis)
    read = None if wanted is None else _rows_of_parts(shapes, parts, axis, wanted)
    if read is None:
        return Demand(box(other_rows), {k: canonical(shapes, value, box(other_rows)) for k, value in parts})
    return Demand(
        demand, {k: canonical(shapes, value, box({**other_rows, axis: rows})) for k, (value, rows) in read.items()}
    )


def pad(shapes: Shapes, node: ir.Node, index: int, demand: Box) -> Demand:
    """Pad. An axis that is padded or cropped is computed entirely; the others are cut."""
    pads = attribute_ints(node, "pads") or integers(optional(node, 1))
    rank, named = shapes.rank(node.outputs[index]), optional(node, 3)
    axes = [*range(rank)] if named is None else integers(named)
    if pads is None or axes is None:
        return everything(node)
    sides = zip(axes, pads[: len(axes)], pads[len(axes) :], strict=True)
    return row_by_row(node, demand, {axis % rank for axis, before, after in sides if before or after})


def _rows_of_parts(
    shapes: Shapes, parts: Sequence[tuple[int, ir.Value]], axis: int, wanted: Sequence[int]
) -> dict[int, tuple[ir.Value, list[int]]] | None:
    """The rows of each concatenated part that are the rows `wanted` of the output; None if they depend on a free size.

    The last row of past and new tokens is the last new token, since there is at least one.
    """
    if min(wanted) < 0 <= max(wanted):
        return None
    from_end, missing, start = max(wanted) < 0, list(wanted), 0
    read: dict[int, tuple[ir.Value, list[int]]] = {}
    for position, value in reversed(parts) if from_end else parts:
        dim = shapes.dims(value)[axis]
        if not isinstance(dim, int):
            if missing != [-1 - start] or not from_end or not shapes.is_positive(dim):
                return None
            return {position: (value, [-1]), **read}
        in_part = [row for row in missing if (-start - dim <= row if from_end else row < start + dim)]
        if in_part:
            rows = [row + start + dim if from_end else row - start for row in in_part]
            read = {position: (value, rows), **read}
        missing = [row for row in missing if row not in in_part]
        start += dim
        if not missing:
            return read
    return None
