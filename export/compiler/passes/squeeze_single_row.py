"""A row that is taken of one: (B, 1, D) becomes (B, D) where it is computed.

In: a Gather of the only row of its source. Out: the same from operators on two axes: ONNX Runtime joins a product with
its bias only there. For f that reads each row alone, f(X)[:, 0] = f(X[:, 0]).
"""

from __future__ import annotations

import onnx_ir as ir

from export.compiler.graph.attributes import attribute_int, given
from export.compiler.graph.constants import Constants, is_constant
from export.compiler.graph.def_use import readers
from export.compiler.graph.node_builder import nodes_before
from export.compiler.graph.shapes import Shapes, same
from export.compiler.operators.table import ELEMENTWISE

ROW_BY_ROW = ELEMENTWISE | {"Add", "Sub", "Mul", "Div", "MatMul"}


def squeeze_single_row(shapes: Shapes, node: ir.Node) -> ir.Value | None:
    """The row, computed on two axes; None if `node` takes no such row, or no product would change."""
    source, index = given(node, 0), given(node, 1)
    row = is_constant(index) and shapes.rank(index) == 0 and attribute_int(node, "axis", 0) == 1
    if not _single(shapes, source) or not row:
        return None
    inside = _inside(shapes, source, node)
    if not any(each.op_type == "MatMul" for each in inside):
        return None
    return _Squeezed(shapes, node, inside).run(source)


def _inside(shapes: Shapes, source: ir.Value, reader: ir.Node) -> set[ir.Node]:
    """The operators on single rows that nobody but they and the reader read."""
    found: set[ir.Node] = set()
    waiting = [source]
    while waiting:
        maker = waiting.pop().producer()
        if maker is not None and maker not in found and _row_by_row(shapes, maker):
            found.add(maker)
            waiting += [value for value in maker.inputs if value is not None]
    while outer := [node for node in found if not _readers(node.outputs[0]) <= found | {reader}]:
        found -= {*outer}
    return found


def _readers(value: ir.Value) -> set[ir.Node | None]:
    """None stands for the graph's user."""
    return {*readers(value), *([None] if value.is_graph_output() else [])}


def _row_by_row(shapes: Shapes, node: ir.Node) -> bool:
    """Whether it makes (B, 1, D) of such values, rows and weights."""
    if node.domain or node.op_type not in ROW_BY_ROW or not _single(shapes, node.outputs[0]):
        return False
    given = [value for value in node.inputs if value is not None]
    if node.op_type == "MatMul":
        return _single(shapes, given[0]) and is_constant(given[1]) and shapes.rank(given[1]) == 2
    rows = [value for value in given if _single(shapes, value) and not is_constant(value)]
    return bool(rows) and all(value in rows or (is_constant(value) and _is_row(shapes, value)) for value in given)


def _single(shapes: Shapes, value: ir.Value) -> bool:
    return value.shape is not None and shapes.rank(value) == 3 and same(shapes.dims(value)[1], 1)


def _is_row(shapes: Shapes, value: ir.Value) -> bool:
    return shapes.rank(value) < 2 or (shapes.rank(value) == 2 and same(shapes.dims(value)[0], 1))


class _Squeezed:
    def __init__(self, shapes: Shapes, at: ir.Node, inside: set[ir.Node]) -> None:
        self.shapes, self.inside = shapes, inside
        self.nodes = nodes_before(Constants(shapes.graph), at)
        self.made: dict[ir.Value, ir.Value] = {}

    def run(self, source: ir.Value) -> ir.Value:
        for node in list(self.shapes.graph):  # in order: recursion would go as deep as the graph
            if node in self.inside:
                inputs = [self._of(value) if value is not None else None for value in node.inputs]
                copy = self.nodes.copy(node, inputs, "row")
                self.made[node.outputs[0]] = self._shaped(copy.outputs[0], node.outputs[0])
        return self._of(source)

    def _of(self, value: ir.Value) -> ir.Value:
        """(B, 1, D) -> (B, D); rows and weights stay."""
        if is_constant(value):
            return value
        if value not in self.made:
            wide = self.shapes.static(value, 2)
            self.made[value] = self._shaped(self.nodes.reshape(value, [0, -1 if wide is None else wide]), value)
        return self.made[value]

    def _shaped(self, made: ir.Value, of: ir.Value) -> ir.Value:
        dims = self.shapes.dims(of)
        made.shape = ir.Shape([dims[0], dims[2]])
        return made
