"""Computes which part of every value is read, from the outputs backward: a live-range analysis of elements.

In: the shapes of a graph. Out: `Demands`: for each value that is read, the boxes that cover what is read; as readers
ask for them, and as operators compute them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations

import onnx_ir as ir

from export.compiler.graph.attributes import attribute_int, reads_shape_alone
from export.compiler.graph.symbolic_shapes import Dim, Shapes
from export.compiler.operators.boxes import MOST_BOXES, WHOLE, Box, ascending, hull
from export.compiler.operators.demand_rules import canonical
from export.compiler.operators.table import demand_of

Demands = dict[ir.Value, list[Box]]

WHOLE_VALUE = [WHOLE]


def analyse(shapes: Shapes) -> tuple[Demands, Demands]:
    """For every value that is read, the boxes of it that its operator computes, and those for which readers ask.

    They differ where the operator cannot compute the part alone that readers ask for. A Shape asks for no box.
    """
    demands: Demands = {output: [WHOLE] for output in shapes.graph.outputs}
    asked: Demands = {output: [WHOLE] for output in shapes.graph.outputs}
    for node in reversed(shapes.graph):
        if reads_shape_alone(node):
            demand_shape(shapes, node, demands)
            continue
        for index, output in enumerate(node.outputs):
            if output not in demands:
                continue
            demands[output] = _computable(shapes, node, index, demands[output])
            for wanted in demands[output]:
                for position, read in demand_of(shapes, node, index, wanted).inputs.items():
                    value = node.inputs[position]
                    if value is not None:
                        demands.setdefault(value, []).append(ascending(read))
                        asked.setdefault(value, []).append(ascending(read))
    for value in demands:
        if value.producer() is None:
            demands[value] = merged(shapes, value, demands[value])
    return demands, asked


def _computable(shapes: Shapes, node: ir.Node, index: int, boxes: list[Box]) -> list[Box]:
    """The smallest boxes that contain these and that the node can compute; a merged box may need widening again."""
    value = node.outputs[index]
    while True:
        widened = merged(shapes, value, [demand_of(shapes, node, index, wanted).produced for wanted in boxes])
        if all(demand_of(shapes, node, index, wanted).produced == wanted for wanted in widened):
            return widened
        boxes = widened


def merged(shapes: Shapes, value: ir.Value, boxes: list[Box]) -> list[Box]:
    """Fewer boxes that cover the same elements: two become their hull if it is no larger than the two together."""
    if WHOLE in boxes or value.shape is None:
        return [WHOLE]
    fewer = [*dict.fromkeys(canonical(shapes, value, ascending(part)) for part in boxes)]
    again = True
    while again and WHOLE not in fewer:
        again = False
        for left, right in combinations(fewer, 2):
            joined = canonical(shapes, value, hull(left, right))
            if share(shapes, value, joined) <= share(shapes, value, left) + share(shapes, value, right) + 1e-9:
                fewer = [*dict.fromkeys([*(other for other in fewer if other not in (left, right)), joined])]
                again = True
                break
    covered = sum(share(shapes, value, part) for part in fewer)
    return [WHOLE] if WHOLE in fewer or len(fewer) > MOST_BOXES or covered >= 1 - 1e-9 else fewer


def share(shapes: Shapes, value: ir.Value, part: Box) -> float:
    """The fraction of a value's elements that a box covers, from 0 to 1, at the sizes of `shapes`."""
    dims = shapes.dims(value)
    return math.prod(
        len(chosen) / max(shapes.nominal(dims[axis]), max(chosen) + 1, -min(chosen)) for axis, chosen in part
    )


def sizes_read(shapes: Shapes, node: ir.Node) -> Sequence[Dim]:
    """The sizes that a Shape node returns, between its attributes `start` and `end`."""
    dims = shapes.dims(node.inputs[0]) if node.inputs[0] is not None else ()
    return dims[attribute_int(node, "start", 0) : attribute_int(node, "end", len(dims))]


def demand_shape(shapes: Shapes, node: ir.Node, demands: Demands) -> None:
    """Adds what a Shape (or another reader of shapes alone) demands of its input.

    That is nothing where the graph's inputs determine the sizes, else the whole input.
    """
    value = node.inputs[0]
    if value is None or node.outputs[0] not in demands:
        return
    demands[node.outputs[0]] = [WHOLE]
    if node.op_type != "Shape" or value.shape is None or not knows_sizes(shapes, node):
        demands.setdefault(value, []).append(WHOLE)


def knows_sizes(shapes: Shapes, node: ir.Node) -> bool:
    """Whether all sizes that a Shape returns follow from the sizes of the graph's inputs."""
    return all(map(shapes.is_known, sizes_read(shapes, node)))
