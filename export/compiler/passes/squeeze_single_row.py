"""Computes a single row (B, 1, D) without its axis of rows, as (B, D).

In: a Gather of the only row of a value. Out: the same output, from operators on two axes: there ONNX Runtime fuses a
product with its bias. For an operator f that computes every row from the same row of its inputs:

    f(X)[:, 0] = f(X[:, 0])

Reads elementwise operators, sums, products and their weights. Refuses nothing by name: the Gather stays if no product
is among them.
"""

from __future__ import annotations

import onnx_ir as ir

from export.compiler.graph.attributes import attribute_int, given
from export.compiler.graph.constants import Constants, is_constant
from export.compiler.graph.def_use import other_readers
from export.compiler.graph.node_builder import nodes_before
from export.compiler.graph.symbolic_shapes import Shapes, same
from export.compiler.operators.table import ELEMENTWISE

ROW_BY_ROW = ELEMENTWISE | {"Add", "Sub", "Mul", "Div", "MatMul"}


def squeeze_single_row(shapes: Shapes, node: ir.Node) -> ir.Value | None:
    """The row of the Gather `node`, computed on two axes; None if the Gather stays."""
    source, index = given(node, 0), given(node, 1)
    gathers_row = is_constant(index) and shapes.rank(index) == 0 and attribute_int(node, "axis", 0) == 1
    if not _has_single_row(shapes, source) or not gathers_row:
        return None
    squeezable = _squeezable_nodes(shapes, source, node)
    if not any(other.op_type == "MatMul" for other in squeezable):
        return None
    return _Squeezing(shapes, node, squeezable).run(source)


def _squeezable_nodes(shapes: Shapes, source: ir.Value, gather: ir.Node) -> set[ir.Node]:
    """The operators on single rows before the Gather that only such operators and the Gather read."""
    nodes: set[ir.Node] = set()
    waiting = [source]
    while waiting:
        producer = waiting.pop().producer()
        if producer is not None and producer not in nodes and _works_on_rows(shapes, producer):
            nodes.add(producer)
            waiting += [value for value in producer.inputs if value is not None]
    while read_elsewhere := [node for node in nodes if other_readers(node.outputs[0], nodes | {gather})]:
        nodes -= {*read_elsewhere}
    return nodes


def _works_on_rows(shapes: Shapes, node: ir.Node) -> bool:
    """Whether a node computes (B, 1, D) row by row from values of this shape, constant rows and weights."""
    if node.domain or node.op_type not in ROW_BY_ROW or not _has_single_row(shapes, node.outputs[0]):
        return False
    operands = [value for value in node.inputs if value is not None]
    if node.op_type == "MatMul":
        return _has_single_row(shapes, operands[0]) and is_constant(operands[1]) and shapes.rank(operands[1]) == 2
    rows = [value for value in operands if _has_single_row(shapes, value) and not is_constant(value)]
    return bool(rows) and all(value in rows or (is_constant(value) and _is_row(shapes, value)) for value in operands)


def _has_single_row(shapes: Shapes, value: ir.Value) -> bool:
    return value.shape is not None and shapes.rank(value) == 3 and same(shapes.dims(value)[1], 1)


def _is_row(shapes: Shapes, value: ir.Value) -> bool:
    return shapes.rank(value) < 2 or (shapes.rank(value) == 2 and same(shapes.dims(value)[0], 1))


class _Squeezing:
    """Copies `squeezable` nodes to before the Gather, on two axes."""

    def __init__(self, shapes: Shapes, gather: ir.Node, squeezable: set[ir.Node]) -> None:
        self.shapes, self.squeezable = shapes, squeezable
        self.nodes = nodes_before(Constants(shapes.graph), gather)
        self.squeezed: dict[ir.Value, ir.Value] = {}

    def run(self, source: ir.Value) -> ir.Value:
        for node in list(self.shapes.graph):  # in order: recursion would go as deep as the graph
            if node in self.squeezable:
                inputs = [self._squeeze(value) if value is not None else None for value in node.inputs]
                copy = self.nodes.copy(node, inputs, "row")
                self.squeezed[node.outputs[0]] = self._with_shape(copy.outputs[0], node.outputs[0])
        return self._squeeze(source)

    def _squeeze(self, value: ir.Value) -> ir.Value:
        """(B, 1, D) -> (B, D); constant rows and weights stay."""
        if is_constant(value):
            return value
        if value not in self.squeezed:
            features = self.shapes.static(value, 2)
            flat = self.nodes.squeeze(value, [1]) if features is None else self.nodes.reshape(value, [0, features])
            self.squeezed[value] = self._with_shape(flat, value)
        return self.squeezed[value]

    def _with_shape(self, squeezed: ir.Value, original: ir.Value) -> ir.Value:
        dims = self.shapes.dims(original)
        squeezed.shape = ir.Shape([dims[0], dims[2]])
        return squeezed
