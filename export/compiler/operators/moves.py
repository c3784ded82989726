"""Rules of operators that move elements.

In and out: see `rules`. A Reshape is followed in the smallest runs of axes of equal size; free axes beside a run do no
harm.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from export.compiler.errors import Refused
from export.compiler.graph.attributes import attribute_int, permutation, reads_shape_alone
from export.compiler.graph.constants import constant, integers
from export.compiler.graph.shapes import FAR, Dim, Shapes, groups, same, slices
from export.compiler.operators.boxes import WHOLE, Box, box
from export.compiler.operators.contrib import CONTRIB, DOMAIN, QUANTISED
from export.compiler.operators.rules import COMPUTING, Demand, Rule, broadcast, clean, everything

RESHAPES = frozenset({"Reshape", "Flatten", "Squeeze", "Unsqueeze"})
ALWAYS = {0, -1}  # rows of every axis
LARGEST_RUN = 1 << 22  # elements of a run that is followed index by index


def demand_of(shapes: Shapes, node: ir.Node, index: int, wanted: Box) -> Demand:
    if reads_shape_alone(node):
        return Demand(WHOLE, {})
    rules = RULES if node.domain == "" else CONTRIB if node.domain == DOMAIN else {}
    rule = rules.get(node.op_type)
    if rule is None:
        return everything(node)
    try:
        demand = rule(shapes, node, index, wanted)
    except Refused:
        return everything(node)
    empty = any(not chosen for read in demand.inputs.values() for _, chosen in read)
    return everything(node) if empty else demand


def _transpose(shapes: Shapes, node: ir.Node, index: int, demand: Box) -> Demand:
    order = permutation(node, shapes.rank(node.outputs[index]))
    return Demand(demand, {0: box({order[axis]: indices for axis, indices in demand})})


def _reshape(shapes: Shapes, node: ir.Node, index: int, demand: Box) -> Demand:
    value, out = node.inputs[0], node.outputs[index]
    if value is None or demand == WHOLE:
        return everything(node)
    before, after = shapes.dims(value), shapes.dims(out)
    produced: dict[int, tuple[int, ...]] = {}
    read: dict[int, tuple[int, ...]] = {}
    for left, right in groups(shapes, before, after) or []:
        chosen = {axis: indices for axis, indices in demand if axis in right}
        source = _through(before, after, left, right, chosen) if chosen else None
        if source is not None:
            produced.update(chosen)
            read.update(source)
    if not produced or shape_plan(shapes, after, produced) is None:
        return everything(node)
    return Demand(box(produced), {0: clean(shapes, value, box(read))})


def _through(
    before: Sequence[Dim], after: Sequence[Dim], left: list[int], right: list[int], chosen: Mapping[int, Sequence[int]]
) -> dict[int, tuple[int, ...]] | None:
    """The box of axes `left` with the elements `chosen` of axes `right`; None without such a box."""
    left = [axis for axis in left if not same(before[axis], 1)]
    right = [axis for axis in right if not same(after[axis], 1)]
    if len(left) == len(right) == 1 and list(chosen) == right:
        return {left[0]: tuple(chosen[right[0]])}
    if left and right and same(before[left[0]], after[right[0]]) and right[0] not in chosen:
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


def shape_plan(shapes: Shapes, dims: Sequence[Dim], chosen: Mapping[int, Sequence[int]]) -> list[Dim] | None:
    """The shape of a value reduced to `chosen`; None if the graph cannot compute it.

    A single free dimension becomes -1, as does the only one that is no size of a graph input.
    """
    sizes: list[Dim] = [len(chosen[axis]) if axis in chosen else dim for axis, dim in enumerate(dims)]
    free = [position for position, dim in enumerate(sizes) if not isinstance(dim, int)]
    unknown = [position for position in free if shapes.source(sizes[position]) is None]
    if len(unknown) > 1:
        return None
    if len(free) == 1 or unknown:
        sizes[(unknown or free)[0]] = -1
    return sizes


def _gather(shapes: Shapes, node: ir.Node, index: int, demand: Box) -> Demand:
    value, indices = node.inputs[0], node.inputs[1]
    if value is None or indices is None:
        return everything(node)
    axis, width = attribute_int(node, "axis", 0) % shapes.rank(value), shapes.rank(indices)
    outer = {own: chosen for own, chosen in demand if own < axis}
    outer |= {own - width + 1: chosen for own, chosen in demand if own >= axis + width}
    inner = {own - axis: chosen for own, chosen in demand if axis <= own < axis + width}
    known = constant(indices)
    if known is None or width > 1:
        return Demand(demand, {0: clean(shapes, value, box(outer)), 1: box(inner)})
    flat = gathered(shapes, node)
    if flat is None:
        kept = box({own: chosen for own, chosen in demand if not axis <= own < axis + width})
        return Demand(kept, {0: clean(shapes, value, box(outer)), 1: WHOLE})
    picked = [flat[position] for position in inner.get(0, range(len(flat)))]
    return Demand(demand, {0: clean(shapes, value, box({**outer, axis: picked})), 1: WHOLE})


def gathered(shapes: Shapes, node: ir.Node) -> list[int] | None:
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


def _slice(shapes: Shapes, node: ir.Node, index: int, demand: Box) -> Demand:
    value, wanted = node.inputs[0], dict(demand)
    cuts = slices(node, shapes.rank(value)) if value is not None else None
    if value is None or cuts is None:
        return everything(node)
    read = dict(wanted)
    for axis, cut in cuts.items():
        before, after = shapes.dims(value)[axis], shapes.dims(node.outputs[index])[axis]
        if cut[0] == 0 and cut[2] == 1 and same(before, after):
            continue  # TensorFlow's exporter names every axis
        places = _places(shapes, before, after, cut, wanted.get(axis))
        if places is None:  # the Slice stays, on parts of the other axes
            kept = box({own: chosen for own, chosen in demand if own not in cuts})
            return Demand(kept, {**everything(node).inputs, 0: clean(shapes, value, kept)})
        read[axis] = places
    return Demand(demand, {**everything(node).inputs, 0: clean(shapes, value, box(read))})


def _places(
    shapes: Shapes, before: Dim, after: Dim, cut: tuple[int, int, int], wanted: tuple[int, ...] | None
) -> tuple[int, ...] | None:
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


def _split(shapes: Shapes, node: ir.Node, index: int, demand: Box) -> Demand:
    value, wanted = node.inputs[0], dict(demand)
    axis = attribute_int(node, "axis", 0) % shapes.rank(node.outputs[index])
    sizes = [shapes.static(out, axis) for out in node.outputs[: index + 1]]
    known = [size for size in sizes if size is not None]
    if value is None or len(known) < len(sizes):
        return everything(node)
    start = sum(known[:index])
    picked = [start + position for position in wanted.get(axis, range(known[index]))]
    return Demand(demand, {**everything(node).inputs, 0: clean(shapes, value, box({**wanted, axis: picked}))})


def _concat(shapes: Shapes, node: ir.Node, index: int, demand: Box) -> Demand:
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


def _expand(shapes: Shapes, node: ir.Node, index: int, demand: Box) -> Demand:
    value, out = node.inputs[0], node.outputs[index]
    sizes = shape_plan(shapes, shapes.dims(out), dict(demand))
    if value is None or demand == WHOLE or sizes is None or -1 in sizes:
        return everything(node)
    return Demand(demand, {0: broadcast(shapes, out, value, demand)})


RULES: Mapping[str, Rule] = {
    **COMPUTING,
    **QUANTISED,
    **dict.fromkeys(RESHAPES, _reshape),
    "Transpose": _transpose,
    "Gather": _gather,
    "Slice": _slice,
    "Split": _split,
    "Concat": _concat,
    "Expand": _expand,
}
