"""Moves a Reshape (B, N, D) -> (B N, D) behind the operators that read every row alone.

In: a graph with shapes. Out: whether it changed. Exporters write the linear layers of GPT-2 and OPT as Reshape, Gemm,
Reshape; between the two no box can pick a row of every image. Each row of a product depends on its own row alone:

    flat(x) W + b = flat(x W + b)            table[flat(i)] = flat(table[i])

Then `prepare` drops the two reshapes, which follow each other.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from export.compiler.graph.attributes import attribute_float, attribute_int, optional
from export.compiler.graph.constants import Constants
from export.compiler.graph.nodes import Attributes, nodes_before
from export.compiler.graph.shapes import WHOLE_NUMBERS, Dim, Shapes, product, same, same_shape
from export.compiler.operators.table import BROADCASTING, ELEMENTWISE

EACH = (ELEMENTWISE | BROADCASTING) - {"PRelu"}  # its slope must not have more axes than the value


def unflatten(graph: ir.Graph) -> bool:
    moving = _Moving(graph)
    for node in list(graph):
        moving.visit(node)
    return moving.changed


class _Moving:
    def __init__(self, graph: ir.Graph) -> None:
        self.graph, self.shapes, self.constants = graph, Shapes(graph), Constants(graph)
        self.tokens: dict[ir.Value, ir.Value] = {}  # (B N, D) -> (B, N, D)
        self.places: dict[ir.Value, ir.Value] = {}  # (B N) -> (B, N), whole numbers
        self.changed = False

    def visit(self, node: ir.Node) -> None:
        out = node.outputs[0]
        if node.domain or len(node.outputs) > 1 or out.shape is None:
            return
        if node.op_type == "Reshape":
            self._reshape(node, out)
            return
        wide = out.shape.rank() == 2 and self.shapes.static(out, 1)
        if wide and not out.is_graph_output() and self._row_by_row(node):
            self._move(node, out)

    def _reshape(self, node: ir.Node, out: ir.Value) -> None:
        source = node.inputs[0]
        if source is None or source.shape is None:
            return
        before, after = self.shapes.dims(source), self.shapes.dims(out)
        if source in self.tokens:
            leading = self.shapes.dims(self.tokens[source])[:-1]
            rest = after[len(leading) :]
            if all(map(same, leading, after)) and rest and all(isinstance(dim, int) for dim in rest):
                node.replace_input_with(0, self.tokens[source])
                self.changed = True
        elif len(after) == 2 and isinstance(after[1], int) and after[1] > 0:
            first = next((axis for axis in range(2, len(before)) if same(product(before[axis:]), after[1])), None)
            if first is not None:  # only the axes before it are joined
                self.tokens[out] = self._with_axes(node, source, before[:first], after[1])
        elif len(after) == 1 and len(before) > 1 and out.dtype in WHOLE_NUMBERS:
            self.places[out] = source

    def _with_axes(self, node: ir.Node, source: ir.Value, leading: Sequence[Dim], width: int) -> ir.Value:
        if self.shapes.rank(source) == len(leading) + 1:
            return source
        sizes = self.constants.add_integers([*[0] * len(leading), width], "tokens")
        return self._node(node, "Reshape", [source, sizes], ir.Shape([*leading, width]))

    def _row_by_row(self, node: ir.Node) -> bool:
        first, second = optional(node, 0), optional(node, 1)
        if node.op_type in ("Gemm", "MatMul") and second in self.tokens:
            return False
        match node.op_type:
            case "Gemm":
                bias = optional(node, 2)
                return first in self.tokens and _is_product(node, bias) and self._each([first, bias])
            case "MatMul":
                return first in self.tokens and node.inputs[1] is not None and self.shapes.rank(node.inputs[1]) == 2
            case "Gather":
                return second in self.places and not attribute_int(node, "axis", 0)
            case "QuantizeLinear" | "DequantizeLinear":
                scalars = all(value is None or self.shapes.rank(value) == 0 for value in node.inputs[1:])
                return first in self.tokens and scalars
            case "LayerNormalization":
                vectors = all(value is None or self.shapes.rank(value) == 1 for value in node.inputs[1:])
                return first in self.tokens and vectors and attribute_int(node, "axis", -1) == -1
            case "BatchNormalization":  # alone it folds as it is; a sum with its input needs both on tokens
                return first in self.tokens and first is not None and len(first.uses()) > 1
        return node.op_type in EACH and self._each(node.inputs)

    def _each(self, values: Sequence[ir.Value | None]) -> bool:
        """Whether each value has the rows of the same tokens, or is alike for all rows."""
        given = [value for value in values if value is not None]
        leading = [self.shapes.dims(self.tokens[value])[:-1] for value in given if value in self.tokens]
        others = [value for value in given if value not in self.tokens]
        alike = all(same_shape(dims, leading[0]) for dims in leading)
        return bool(leading) and alike and all(self._is_row(value) for value in others)

    def _is_row(self, value: ir.Value) -> bool:
        if value.shape is None:
            return False
        return value.shape.rank() < 2 or same(self.shapes.dims(value)[0], 1)

    def _move(self, node: ir.Node, out: ir.Value) -> None:
        """The operator on tokens, and behind it the Reshape."""
        gathers = node.op_type == "Gather"
        apart = self.places if gathers else self.tokens
        given = [apart.get(value, value) if value is not None else None for value in node.inputs]
        tokens = next(apart[value] for value in node.inputs if value in apart)
        width, leading = self.shapes.static(out, 1) or 0, self.shapes.dims(tokens)
        shape = ir.Shape([*(leading if gathers else leading[:-1]), width])
        if node.op_type == "Gemm":
            weight = given[1]
            if attribute_int(node, "transB", 0):
                weight = self._node(node, "Transpose", [weight], None, {"perm": [1, 0]})
            moved = self._node(node, "MatMul", [given[0], weight], shape)
            if len(given) > 2 and given[2] is not None:
                moved = self._node(node, "Add", [moved, given[2]], shape)
        elif node.op_type == "BatchNormalization":  # of axis 1
            rank = len(leading)
            order, back = [0, rank - 1, *range(1, rank - 1)], [0, *range(2, rank), 1]
            turned = self._transposed(node, tokens, order)
            normed = self._node(node, node.op_type, [turned, *given[1:]], turned.shape, node.attributes)
            moved = self._transposed(node, normed, back)
        else:
            moved = self._node(node, node.op_type, given, shape, node.attributes)
        flat = self._node(node, "Reshape", [moved, self.constants.add_integers([-1, width], "flat")], out.shape)
        ir.convenience.replace_all_uses_with(out, flat)
        self.tokens[flat] = moved
        self.changed = True

    def _transposed(self, before: ir.Node, value: ir.Value, order: list[int]) -> ir.Value:
        dims = self.shapes.dims(value)
        return self._node(before, "Transpose", [value], ir.Shape([dims[axis] for axis in order]), {"perm": order})

    def _node(
        self,
        before: ir.Node,
        operator: str,
        inputs: Sequence[ir.Value | None],
        shape: ir.Shape | None,
        attributes: Attributes | None = None,
    ) -> ir.Value:
        dtype = before.outputs[0].dtype
        return nodes_before(self.constants, before).add(operator, inputs, dtype, attributes, shape)


def _is_product(node: ir.Node, bias: ir.Value | None) -> bool:
    """Whether a Gemm is x W + b, perhaps with W transposed."""
    scales = attribute_float(node, "alpha", 1.0), attribute_float(node, "beta", 1.0) if bias is not None else 1.0
    return scales == (1.0, 1.0) and not attribute_int(node, "transA", 0)
