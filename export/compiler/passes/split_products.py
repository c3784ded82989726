"""Computes the parts of a linear layer's output apart, where its readers separate them.

In: any graph. Out: the same outputs, without the copies of the Split: a layer for each part, as for queries, keys and
values:

    x [W1 W2 W3] + [b1 b2 b3] = [x W1 + b1, x W2 + b2, x W3 + b3]

Between layer and readers stand at most a bias and moves of elements. `Materialiser` builds the parts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx_ir as ir

from export.compiler.analyses.demand import WHOLE_VALUE, Demands, knows_sizes
from export.compiler.analyses.layer_changes import linear_weight
from export.compiler.errors import Site
from export.compiler.graph.attributes import reads_shape_alone
from export.compiler.graph.constants import is_constant
from export.compiler.graph.def_use import only_reader, readers
from export.compiler.graph.shapes import Shapes
from export.compiler.operators.boxes import MOST_BOXES, WHOLE, Box, ascending
from export.compiler.operators.table import VIEWS, demand_of
from export.compiler.passes.materialise_parts import Materialiser
from export.compiler.passes.outcome import Outcome

SEPARATING = frozenset({"Split", "Gather", "Slice"})


def split_products(model: ir.Model, sizes: Mapping[str, int]) -> Outcome:
    shapes, sites, parted = Shapes(model.graph, sizes), list[Site](), Demands()
    for node in model.graph:
        weight = linear_weight(node)
        if weight is None or node.op_type == "Conv" or len([*weight.uses()]) > 1:
            continue
        parts = _parts(shapes, _chain(node.outputs[0]))
        if parts:
            parted |= parts
            count = len(parts[node.outputs[0]])
            sites.append(Site.at(node, f"computed as {count} layers"))
    if sites:
        values = [value for node in model.graph for value in node.outputs]
        Materialiser(shapes, dict.fromkeys([*model.graph.inputs, *values], WHOLE_VALUE) | parted).run()
    return Outcome(tuple(sites), () if sites else (_obstacle(model.graph),))


def _obstacle(graph: ir.Graph) -> Site:
    return Site(graph.outputs[0].name or "", "graph output", "no reader separates the output of a linear layer")


def _chain(value: ir.Value) -> list[ir.Value]:
    """From a layer's output to the value that its readers separate."""
    chain = [value]
    while (reader := only_reader(chain[-1])) is not None and reader.op_type not in SEPARATING:
        moves = reader.op_type in VIEWS and reader.inputs[0] is chain[-1]
        biased = reader.op_type == "Add" and any(map(is_constant, reader.inputs))
        if reader.domain or not (moves or biased):
            break
        chain.append(reader.outputs[0])
    return chain


def _parts(shapes: Shapes, chain: Sequence[ir.Value]) -> Demands:
    """The boxes of each value of the chain; none unless they part the layer's features, each read once."""
    boxes = _separated(shapes, chain[-1])
    demands: Demands = {}
    for value in reversed(chain):
        maker = value.producer()
        if maker is None or not _disjoint(shapes, value, boxes) or _keeps_whole(shapes, value):
            return {}
        asked = [demand_of(shapes, maker, 0, wanted) for wanted in boxes]
        if [demand.produced for demand in asked] != boxes:
            return {}
        demands[value] = boxes
        place = next((k for k, given in enumerate(maker.inputs) if given in chain), 0)
        boxes = [ascending(demand.inputs.get(place, WHOLE)) for demand in asked]
    ((axis, _),) = demands[chain[0]][0]
    return demands if axis == shapes.rank(chain[0]) - 1 else {}


def _keeps_whole(shapes: Shapes, value: ir.Value) -> bool:
    """Whether a node reads its size, which the graph's inputs do not have."""
    asked = [use.node for use in value.uses() if reads_shape_alone(use.node)]
    return not all(node.op_type == "Shape" and knows_sizes(shapes, node) for node in asked)


def _separated(shapes: Shapes, value: ir.Value) -> list[Box]:
    """What each reader takes."""
    boxes: list[Box] = []
    for node in readers(value):
        if node.op_type not in SEPARATING or node.domain or node.inputs[0] is not value or value.is_graph_output():
            return []
        boxes += [demand_of(shapes, node, index, WHOLE).inputs.get(0, WHOLE) for index in range(len(node.outputs))]
    return [*dict.fromkeys(ascending(part) for part in boxes)]


def _disjoint(shapes: Shapes, value: ir.Value, boxes: Sequence[Box]) -> bool:
    """Whether they part one axis, and nothing of it is left."""
    axes = {axis for part in boxes for axis, _ in part}
    if len(axes) != 1 or not 1 < len(boxes) <= MOST_BOXES or any(len(part) != 1 for part in boxes):
        return False
    places = sorted(place for part in boxes for place in part[0][1])
    return places == list(range(shapes.static(value, axes.pop()) or 0))
