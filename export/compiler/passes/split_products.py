"""Splits a linear layer into several where its readers split its output, as into queries, keys and values.

In: any graph. Out: the same outputs, without the copies that the Split makes:

    x [W1 W2 W3] + [b1 b2 b3] = [x W1 + b1, x W2 + b2, x W3 + b3]

Reads a layer and behind it a Split, Slices or Gathers; between them at most a bias and operators that move elements.
`Materialiser` builds the parts. A layer stays if they do not cut its features into parts that are each read once, or if
a node reads sizes that do not follow from the graph's inputs. Refuses, by the name of the output, a graph without such
a layer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx_ir as ir

from export.compiler.analyses.demand import WHOLE_VALUE, Demands, knows_sizes
from export.compiler.analyses.linear_layer_changes import linear_weight
from export.compiler.errors import Site
from export.compiler.graph.attributes import reads_shape_alone
from export.compiler.graph.constants import is_constant
from export.compiler.graph.def_use import only_reader, readers
from export.compiler.graph.symbolic_shapes import Shapes
from export.compiler.operators.boxes import MOST_BOXES, WHOLE, Box, ascending
from export.compiler.operators.table import SELECTING, VIEWS, demand_of
from export.compiler.passes.materialise_parts import Materialiser
from export.compiler.passes.outcome import Outcome


def split_products(model: ir.Model, sizes: Mapping[str, int]) -> Outcome:
    """Splits every linear layer whose readers separate its output; changes `model` in place.

    `sizes`: free dimension -> its usual size. Returns the split layers, or as refusal that there is none.
    """
    shapes, sites, demands = Shapes(model.graph, sizes), list[Site](), Demands()
    for node in model.graph:
        weight = linear_weight(node)
        if weight is None or node.op_type == "Conv" or len([*weight.uses()]) > 1:
            continue
        parts = _parts(shapes, _chain(node.outputs[0]))
        if parts:
            demands |= parts
            count = len(parts[node.outputs[0]])
            sites.append(Site.at(node, f"computed as {count} layers"))
    if sites:
        values = [value for node in model.graph for value in node.outputs]
        Materialiser(shapes, dict.fromkeys([*model.graph.inputs, *values], WHOLE_VALUE) | demands).run()
        return Outcome(tuple(sites))
    reason = "no reader separates the output of a linear layer"
    return Outcome(refusals=(Site(model.graph.outputs[0].name or "", "graph output", reason),))


def _chain(value: ir.Value) -> list[ir.Value]:
    """The values from a layer's output to the value that its readers split, through a bias and moves of elements."""
    chain = [value]
    while (reader := only_reader(chain[-1])) is not None and reader.op_type not in SELECTING:
        is_move = reader.op_type in VIEWS and reader.inputs[0] is chain[-1]
        is_bias = reader.op_type == "Add" and any(map(is_constant, reader.inputs))
        if reader.domain or not (is_move or is_bias):
            break
        chain.append(reader.outputs[0])
    return chain


def _parts(shapes: Shapes, chain: Sequence[ir.Value]) -> Demands:
    """The boxes into which every value of the chain is split; empty unless they split the layer's features."""
    boxes = _boxes_of_readers(shapes, chain[-1])
    parts: Demands = {}
    for value in reversed(chain):
        producer = value.producer()
        if producer is None or not _is_partition(shapes, value, boxes) or _needs_entire_shape(shapes, value):
            return {}
        demands = [demand_of(shapes, producer, 0, wanted) for wanted in boxes]
        if [demand.produced for demand in demands] != boxes:
            return {}
        parts[value] = boxes
        position = next((k for k, operand in enumerate(producer.inputs) if operand in chain), 0)
        boxes = [ascending(demand.inputs.get(position, WHOLE)) for demand in demands]
    ((axis, _),) = parts[chain[0]][0]
    return parts if axis == shapes.rank(chain[0]) - 1 else {}


def _needs_entire_shape(shapes: Shapes, value: ir.Value) -> bool:
    """Whether a node reads a size of the value that does not follow from the graph's inputs."""
    shape_readers = [use.node for use in value.uses() if reads_shape_alone(use.node)]
    return not all(node.op_type == "Shape" and knows_sizes(shapes, node) for node in shape_readers)


def _boxes_of_readers(shapes: Shapes, value: ir.Value) -> list[Box]:
    """The boxes that the readers read; empty if one of them does more than select."""
    boxes: list[Box] = []
    for node in readers(value):
        if node.op_type not in SELECTING or node.domain or node.inputs[0] is not value or value.is_graph_output():
            return []
        boxes += [demand_of(shapes, node, index, WHOLE).inputs.get(0, WHOLE) for index in range(len(node.outputs))]
    return [*dict.fromkeys(ascending(part) for part in boxes)]


def _is_partition(shapes: Shapes, value: ir.Value, boxes: Sequence[Box]) -> bool:
    """Whether the boxes cut one axis into at least two parts, with every row in exactly one of them."""
    axes = {axis for part in boxes for axis, _ in part}
    if len(axes) != 1 or not 1 < len(boxes) <= MOST_BOXES or any(len(part) != 1 for part in boxes):
        return False
    rows = sorted(row for part in boxes for row in part[0][1])
    return rows == list(range(shapes.static(value, axes.pop()) or 0))
