"""Follows an axis of an operator's output back to the axes of its inputs that have the same elements in order.

In: a node of known shapes and an axis of one of its outputs. Out: an axis of each input that the output axis reads,
keyed by the input's position. For MatMul (B, N, D) by (D, E), axis 1 of the output is {0: 1}: axis 1 of input 0.
"""

from __future__ import annotations

import onnx_ir as ir

from export.compiler.graph.symbolic_shapes import Shapes, agree
from export.compiler.operators.boxes import WHOLE, box
from export.compiler.operators.demand_rules import canonical
from export.compiler.operators.table import demand_of


def input_axes(shapes: Shapes, node: ir.Node, output: ir.Value, axis: int) -> dict[int, int] | None:
    """Position of an input -> its axis that `axis` of `output` comes from.

    Element i along `axis` of the output then reads exactly element i along that axis of the input. Empty if no input
    varies along `axis`; None if an element reads several elements of an input. Only the first and the last element are
    asked for. A rule that maps them to the first and the last element of an input's axis of the same size maps element
    i to element i.
    """
    index, size = output.index() or 0, shapes.dims(output)[axis]
    demands = []
    for end in (0, -1):
        wanted = canonical(shapes, output, box({axis: (end,)}))
        demands.append(demand_of(shapes, node, index, wanted))
        if wanted == WHOLE or demands[-1].produced != wanted:
            return None
    first, last = (demand.inputs for demand in demands)
    axes: dict[int, int] = {}
    for position, operand in enumerate(node.inputs):
        ends = dict(first.get(position, WHOLE)), dict(last.get(position, WHOLE))
        differing = [
            candidate for candidate in {*ends[0], *ends[1]} if ends[0].get(candidate) != ends[1].get(candidate)
        ]
        if operand is None or (not differing and (position in first) == (position in last)):
            continue
        edges = [canonical(shapes, operand, box({candidate: (end,)})) for candidate in differing for end in (0, -1)]
        exact = [box({candidate: end.get(candidate, ())}) for candidate in differing for end in ends] == edges
        if len(differing) != 1 or not exact or not agree(size, shapes.dims(operand)[differing[0]]):
            return None
        axes[position] = differing[0]
    return axes
