"""Which axis of each input an axis of an operator's output is, element by element.

In: a node of known shapes and an axis of one of its outputs. Out: axes by the inputs' positions.
"""

from __future__ import annotations

import onnx_ir as ir

from export.compiler.graph.shapes import Shapes, agree
from export.compiler.operators.boxes import WHOLE, box
from export.compiler.operators.demand_rules import canonical
from export.compiler.operators.table import demand_of


def carried(shapes: Shapes, node: ir.Node, value: ir.Value, axis: int) -> dict[int, int] | None:
    """The axis of each input whose elements the elements along `axis` of `value` read, one by one; None otherwise.

    A rule that takes the first to the first and the last to the last takes each to each.
    """
    index, size = value.index() or 0, shapes.dims(value)[axis]
    demands = []
    for at in (0, -1):
        wanted = canonical(shapes, value, box({axis: (at,)}))
        demands.append(demand_of(shapes, node, index, wanted))
        if wanted == WHOLE or demands[-1].produced != wanted:
            return None
    first, last = (demand.inputs for demand in demands)
    found: dict[int, int] = {}
    for position, given in enumerate(node.inputs):
        ends = dict(first.get(position, WHOLE)), dict(last.get(position, WHOLE))
        moved = [own for own in {*ends[0], *ends[1]} if ends[0].get(own) != ends[1].get(own)]
        if given is None or (not moved and (position in first) == (position in last)):
            continue
        edges = [canonical(shapes, given, box({own: (at,)})) for own in moved for at in (0, -1)]
        exact = [box({own: end.get(own, ())}) for own in moved for end in ends] == edges
        if len(moved) != 1 or not exact or not agree(size, shapes.dims(given)[moved[0]]):
            return None
        found[position] = moved[0]
    return found
