"""Moves a Reshape (B, N, D) -> (B N, D) behind the operators that read every row alone.

In: a graph with shapes. Out: whether it changed. Exporters write the linear layers of GPT-2 and OPT as Reshape, Gemm,
Reshape, and all of a mixture of experts; between the two no box can pick a row of every image. Each row of a product
depends on its own row alone, as do its experts:

    flat(x) W + b = flat(x W + b)       table[flat(i)] = flat(table[i])       TopK(flat(x)) = flat(TopK(x))

Then `prepare` drops the two reshapes, which follow each other.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from export.compiler.graph.attributes import (
    attribute_float,
    attribute_int,
    attribute_ints,
    opset,
    optional,
    permutation,
)
from export.compiler.graph.constants import Constants, integers, is_constant, number
from export.compiler.graph.def_use import is_read, made_of
from export.compiler.graph.node_builder import Attributes, nodes_before
from export.compiler.graph.shapes import WHOLE_NUMBERS, Dim, Shapes, product, same, same_shape
from export.compiler.operators.table import BROADCASTING, ELEMENTWISE, REDUCING

EACH = (ELEMENTWISE | BROADCASTING) - {"PRelu"}  # its slope must not have more axes than the value
ALONG = {  # operators along one axis, and the axis if they name none
    **dict.fromkeys(("LayerNormalization", "LogSoftmax", "OneHot", "Softmax", "TopK"), -1),
    **dict.fromkeys(("ArgMax", "ArgMin", "Concat", "Gather", "GatherElements", "ScatterElements", "Split"), 0),
}
ALIKE = {"Concat", "GatherElements", "ScatterElements"}  # of which each input has the rows
AXES = {**dict.fromkeys((*REDUCING, "Squeeze", "Unsqueeze"), 1), "Slice": 3}  # the input that names several axes
AXES_ARE_INPUTS = 13  # from this opset on; before, a Softmax mixes several axes


def unflatten(graph: ir.Graph) -> bool:
    moving = _Moving(graph)
    for node in list(graph):
        moving.visit(node)
    return moving.changed


class _Moving:
    def __init__(self, graph: ir.Graph) -> None:
        self.graph, self.shapes, self.constants = graph, Shapes(graph), Constants(graph)
        self.tokens: dict[ir.Value, ir.Value] = {}  # (B N, ...) -> (B, N, ...)
        self.changed = False

    def visit(self, node: ir.Node) -> None:
        outputs = [*filter(is_read, node.outputs)]
        if node.domain or not outputs or any(out.shape is None or not out.shape.rank() for out in outputs):
            return
        if node.op_type in ("Flatten", "Reshape"):
            self._reshape(node, outputs[0])
            return
        flat = next((value for value in [*node.inputs, _filled_as(node)] if value in self.tokens), None)
        if flat is None or any(out.is_graph_output() for out in outputs):
            return
        rows = self.shapes.dims(flat)[0]
        if all(self._is_flat(out, rows) for out in outputs) and self._row_by_row(node, self.shapes.rank(outputs[0])):
            self._move(node, outputs, self._leading(flat))

    def _is_flat(self, out: ir.Value, rows: Dim) -> bool:
        """Whether it has so many rows of features of known number."""
        first, *rest = self.shapes.dims(out)
        return same(first, rows) and all(isinstance(dim, int) and dim > 0 for dim in rest)

    def _leading(self, flat: ir.Value) -> tuple[Dim, ...]:
        """The axes that its first axis joins."""
        return self.shapes.dims(self.tokens[flat])[: self.shapes.rank(self.tokens[flat]) - self.shapes.rank(flat) + 1]

    def _reshape(self, node: ir.Node, out: ir.Value) -> None:
        source, after = node.inputs[0], self.shapes.dims(out)
        if source is None or source.shape is None:
            return
        apart = self.tokens.get(source, source)
        before, rest = self.shapes.dims(apart), after[1:]
        if apart is not source:
            leading = self._leading(source)
            behind = after[len(leading) :]
            if all(map(same, leading, after)) and behind and all(isinstance(dim, int) for dim in behind):
                node.replace_input_with(0, apart)
                self.changed = True
                return
        elif len(after) != 2 and (len(after) != 1 or out.dtype not in WHOLE_NUMBERS):
            return
        if all(isinstance(dim, int) and dim > 0 for dim in rest):
            ends = range(2, len(before) + 1)  # only the axes before it are joined
            first = next((end for end in ends if same_shape([product(before[end:])], [product(rest)])), None)
            if first is not None:
                self.tokens[out] = self._with_axes(node, apart, before[:first], rest)

    def _with_axes(self, node: ir.Node, source: ir.Value, leading: Sequence[Dim], rest: Sequence[Dim]) -> ir.Value:
        if same_shape(self.shapes.dims(source), [*leading, *rest]):
            return source
        sizes = [*[0] * len(leading), *(dim for dim in rest if isinstance(dim, int))]
        shape = ir.Shape([*leading, *rest])
        return self._node(node, "Reshape", [source, self.constants.add_integers(sizes, "tokens")], shape)

    def _row_by_row(self, node: ir.Node, rank: int) -> bool:
        first, second = optional(node, 0), optional(node, 1)
        match node.op_type:
            case "Gemm":
                bias = optional(node, 2)
                return second not in self.tokens and _is_product(node, bias) and self._each([first, bias], rank)
            case "MatMul" if rank == 2:
                return second is not None and second not in self.tokens and self.shapes.rank(second) == 2
            case "Gather" if second in self.tokens:
                return first not in self.tokens and not attribute_int(node, "axis", 0)
            case "GatherND":
                alone = first not in self.tokens and second is not None and self.shapes.rank(second) > 1
                return alone and not attribute_int(node, "batch_dims", 0)
            case "QuantizeLinear" | "DequantizeLinear":
                return all(value is None or self.shapes.rank(value) == 0 for value in node.inputs[1:])
            case "BatchNormalization":  # alone it folds as it is; a sum with its input needs both on tokens
                return rank == 2 and first is not None and len(first.uses()) > 1
            case "Expand" | "Tile":
                known = node.op_type == "Expand" or is_constant(second)
                return known and self._each([first if first in self.tokens else _filled_as(node)], rank)
            case "Transpose":
                return permutation(node, rank)[0] == 0
        if node.op_type in ALONG or node.op_type in AXES:
            return self._keeps_rows(node, rank)
        return node.op_type in EACH | {"MatMul"} and self._each(node.inputs, rank)

    def _keeps_rows(self, node: ir.Node, rank: int) -> bool:
        """Of an operator along some axes, whether the rows are none of them."""
        first, *others = node.inputs
        if node.op_type in ALIKE:
            alike = all(value in self.tokens for value in node.inputs) and self._each(node.inputs, rank)
        else:
            given = [value for value in others if value is not None]
            alike = first in self.tokens and all(is_constant(value) and self.shapes.rank(value) < 2 for value in given)
        old = node.op_type != "LayerNormalization" and opset(node) < AXES_ARE_INPUTS
        return alike and not old and min(self._axes(node), default=0) > 0

    def _axes(self, node: ir.Node) -> list[int]:
        """Along which it works, from 0 on: ONNX Runtime sums nothing of an empty value along axes below 0."""
        if node.op_type in ALONG:
            axes = [attribute_int(node, "axis", ALONG[node.op_type])]
        else:
            axes = attribute_ints(node, "axes") or integers(optional(node, AXES[node.op_type])) or []
        value = node.outputs[0] if node.op_type in ("OneHot", "Unsqueeze") else node.inputs[0]
        return [axis % self.shapes.rank(value) for axis in axes] if value is not None else []

    def _each(self, values: Sequence[ir.Value | None], rank: int) -> bool:
        """Whether each value has the rows of the same tokens, or is alike for all rows."""
        given = [value for value in values if value is not None]
        flat = [value for value in given if value in self.tokens]
        others = [value for value in given if value not in self.tokens]
        alike = all(same_shape(self._leading(value), self._leading(flat[0])) for value in flat)
        whole = all(self.shapes.rank(value) == rank for value in flat)
        return bool(flat) and alike and whole and all(self._is_row(value, rank) for value in others)

    def _is_row(self, value: ir.Value, rank: int) -> bool:
        if value.shape is None:
            return False
        return value.shape.rank() < rank or same(self.shapes.dims(value)[0], 1)

    def _move(self, node: ir.Node, outputs: Sequence[ir.Value], leading: Sequence[Dim]) -> None:
        """The operator on tokens, and behind it the Reshape."""
        for out, moved in zip(outputs, self._moved(node, outputs, leading), strict=True):
            rest = [dim for dim in self.shapes.dims(out)[1:] if isinstance(dim, int)]
            sizes = self.constants.add_integers([-1, *rest], "flat")
            flat = nodes_before(self.constants, node).add("Reshape", [moved, sizes], out.dtype, shape=out.shape)
            ir.convenience.replace_all_uses_with(out, flat)
            self.tokens[flat] = moved
        self.changed = True

    def _moved(self, node: ir.Node, outputs: Sequence[ir.Value], leading: Sequence[Dim]) -> list[ir.Value]:
        given = [self.tokens.get(value, value) if value is not None else None for value in node.inputs]
        shape, apart = ir.Shape([*leading, *self.shapes.dims(outputs[0])[1:]]), len(leading) - 1
        if node.op_type == "Gemm":
            return [self._product(node, given, shape)]
        if node.op_type == "BatchNormalization":  # of axis 1
            order, back = [0, apart + 1, *range(1, apart + 1)], [0, *range(2, apart + 2), 1]
            turned = self._node(node, "Transpose", [given[0]], attributes={"perm": order})
            normed = self._node(node, node.op_type, [turned, *given[1:]], attributes=node.attributes)
            return [self._node(node, "Transpose", [normed], shape, {"perm": back})]
        new = nodes_before(self.constants, node).copy(node, given, "tokens")
        if (like := _filled_as(node)) in self.tokens and node.inputs[0] not in self.tokens:
            new.replace_input_with(1, nodes_before(self.constants, new).add("Shape", [self.tokens[like]]))
        elif node.op_type in ("Expand", "Tile"):
            rest = (
                self.shapes.dims(outputs[0])[1:] if node.op_type == "Expand" else (integers(node.inputs[1]) or [])[1:]
            )
            repeats = [dim for dim in rest if isinstance(dim, int)]
            new.replace_input_with(1, self.constants.add_integers([*[1] * len(leading), *repeats], "repeats"))
        elif node.op_type == "Transpose":
            order = permutation(node, self.shapes.rank(outputs[0]))
            new.attributes["perm"] = ir.AttrInt64s("perm", [*range(apart), *(axis + apart for axis in order)])
        elif node.op_type in ALONG and node.inputs[0] in self.tokens:
            new.attributes["axis"] = ir.AttrInt64("axis", self._axes(node)[0] + apart)
        elif node.op_type in AXES:
            axes = [axis + apart for axis in self._axes(node)]
            if "axes" in node.attributes:
                new.attributes["axes"] = ir.AttrInt64s("axes", axes)
            else:
                new.replace_input_with(AXES[node.op_type], self.constants.add_integers(axes))
        made = [new.outputs[out.index() or 0] for out in outputs]
        for out, value in zip(outputs, made, strict=True):
            value.shape = ir.Shape([*leading, *self.shapes.dims(out)[1:]])
        return made

    def _product(self, node: ir.Node, given: Sequence[ir.Value | None], shape: ir.Shape) -> ir.Value:
        weight, bias = given[1], given[2] if len(given) > 2 else None
        if attribute_int(node, "transB", 0):
            weight = self._node(node, "Transpose", [weight], attributes={"perm": [1, 0]})
        moved = self._node(node, "MatMul", [given[0], weight], shape)
        return moved if bias is None else self._node(node, "Add", [moved, bias], shape)

    def _node(
        self,
        before: ir.Node,
        operator: str,
        inputs: Sequence[ir.Value | None],
        shape: ir.Shape | None = None,
        attributes: Attributes | None = None,
    ) -> ir.Value:
        dtype = before.outputs[0].dtype
        return nodes_before(self.constants, before).add(operator, inputs, dtype, attributes, shape)


def _filled_as(node: ir.Node) -> ir.Value | None:
    """The value whose shape an Expand gives to a number."""
    held = node.inputs[0] if node.op_type == "Expand" else None
    like = made_of(node.inputs[1], "Shape") if held is not None and number(held) is not None else None
    whole = like is not None and like.shape == node.outputs[0].shape
    return like if whole else None


def _is_product(node: ir.Node, bias: ir.Value | None) -> bool:
    """Whether a Gemm is x W + b, perhaps with W transposed."""
    scales = attribute_float(node, "alpha", 1.0), attribute_float(node, "beta", 1.0) if bias is not None else 1.0
    return scales == (1.0, 1.0) and not attribute_int(node, "transA", 0)
