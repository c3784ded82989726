"""What follows if a value loses a constant: which later sums take it up at no cost.

In: a graph with shapes, and values v that become v - s. Out: the new constants of later nodes, or Refused. For a shift
s of X, W a weight, A the rows of a softmax:

    (X - s) W = X W - s W      A (X - s) = A X - s      softmax(q (X - s)') = softmax(q X')      X - s + (c + s) = X + c
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from export.compiler.analyses.neighbours import linear_weight, narrowed, old_bias
from export.compiler.errors import Refused
from export.compiler.graph.attributes import attribute_int, opset, reads_shape_alone
from export.compiler.graph.constants import constant, doubles, is_constant
from export.compiler.graph.shapes import Shapes, same
from export.compiler.operators.table import VIEWS, view_of

Array = NDArray[Any]
LARGEST_SHIFT = 100.0  # float32 still keeps the 1e-5 of features of 1 to 10


@dataclass
class Shifts:
    """`constants`: what nodes will add, with all axes; Expand repeats it, LayerNormalization adds it at its end."""

    shapes: Shapes
    shifts: dict[ir.Value, Array] = field(default_factory=dict)
    constants: dict[ir.Node, Array] = field(default_factory=dict)

    def follow(self, nodes: Iterable[ir.Node]) -> None:
        """`nodes` are in the graph's order. Raises Refused at a reader that cannot do without the constant."""
        for node in nodes:
            shifted = {k: self.shifts[value] for k, value in enumerate(node.inputs) if value in self.shifts}
            if not shifted or reads_shape_alone(node):
                continue
            rule = RULES.get(node.op_type) if not node.domain else None
            if rule is None:
                raise Refused(node.outputs[0].name or "", node.op_type, "reads the sum and is not linear")
            self.shift(node.outputs[0], rule(self, node, shifted))
        for value in self.shifts:
            if value.is_graph_output():
                raise Refused(value.name or "", "graph output", "its constant is read by the graph's user")

    def shift(self, value: ir.Value, array: Array | None) -> None:
        if array is None or not array.any():
            return
        if not np.abs(array).max() <= LARGEST_SHIFT:
            raise Refused(value.name or "", "Add", f"float32 would round behind a constant over {LARGEST_SHIFT:.0f}")
        self.shifts[value] = array

    def term(self, node: ir.Node | None) -> tuple[ir.Value, Array] | None:
        """Of a sum with a constant: the other term, of the sum's shape, and the constant with all axes."""
        if node is None or node.op_type != "Add" or node.domain:
            return None
        out = self.shapes.dims(node.outputs[0])
        for value, number in (node.inputs, reversed(node.inputs)):
            array = self.constants.get(node, constant(number))
            if value is None or is_constant(value) or not is_constant(number) or array is None or array.ndim > len(out):
                continue
            dims = self.shapes.dims(value)
            if len(dims) == len(out) and all(map(same, dims, out)):
                return value, array.astype(np.float64).reshape((1,) * (len(out) - array.ndim) + array.shape)
        return None

    def give(self, node: ir.Node, array: Array) -> bool:
        """Lets a sum with a constant, an Expand of a constant or a norm with a bias add `array` more."""
        source = constant(node.inputs[0]) if node.op_type == "Expand" and not node.domain else None
        term = self.term(node)
        if term is not None:
            self.constants[node] = term[1] + array
        elif source is not None:
            self.constants[node] = self.constants.get(node, source.astype(np.float64)) + array
        elif node.op_type == "LayerNormalization" and len(node.inputs) > 2 and is_constant(node.inputs[2]):
            bias = self.constants.get(node, doubles(node.inputs[2])) if node.inputs[2] is not None else array
            if bias.ndim != 1 or array.size != bias.size:
                return False
            self.constants[node] = bias + array.reshape(-1)
        else:
            return False
        return True

    def gives(self, value: ir.Value, reader: ir.Node, array: Array) -> bool:
        """The same for a value that `reader` alone reads."""
        maker = value.producer()
        readers = {use.node for use in value.uses() if not reads_shape_alone(use.node)}
        return maker is not None and readers == {reader} and not value.is_graph_output() and self.give(maker, array)


Shifted = Mapping[int, Array]  # the shifts of a node's inputs, by position
Rule = Callable[[Shifts, ir.Node, Shifted], Array | None]


def _add(state: Shifts, node: ir.Node, shifted: Shifted) -> Array | None:
    if state.give(node, sum(shifted.values(), np.zeros(1))):
        return None
    total = sum(shifted.values(), np.zeros(1))
    others = [value for value in node.inputs if value is not None and value not in state.shifts]
    if not total.any() or any(state.gives(value, node, total) for value in others):
        return None
    return np.asarray(total)


def _matmul(state: Shifts, node: ir.Node, shifted: Shifted) -> Array | None:
    left, right = node.inputs
    weight = linear_weight(node)
    if left is None or right is None or len(shifted) > 1:
        raise Refused(node.outputs[0].name or "", "MatMul", "multiplies two sums")
    if 0 in shifted and weight is not None:
        wide = np.broadcast_to(shifted[0], (*shifted[0].shape[:-1], doubles(weight).shape[0]))
        return np.asarray(wide @ doubles(weight))
    if 1 in shifted and shifted[1].shape[-1] == 1 and _softmax_alone(node):
        return None  # of each query the same for all keys
    maker = left.producer()
    if 1 in shifted and shifted[1].shape[-2] == 1 and maker is not None and _is_softmax(maker, -1):
        return shifted[1]  # the weights of a row sum to one
    raise Refused(node.outputs[0].name or "", "MatMul", "multiplies the sum by what is no weight")


def _softmax_alone(scores: ir.Node) -> bool:
    readers = [use.node for use in scores.outputs[0].uses()]
    return len(readers) == 1 and _is_softmax(readers[0], -1) and not scores.outputs[0].is_graph_output()


def _is_softmax(node: ir.Node, axis: int) -> bool:
    """Over this axis alone, counted from the end."""
    if node.op_type != "Softmax" or node.domain or node.outputs[0].shape is None:
        return False
    rank = node.outputs[0].shape.rank()
    own = attribute_int(node, "axis", 1 if opset(node) < 13 else -1) % rank
    return own - rank == axis and (opset(node) >= 13 or axis == -1)


def _softmax(state: Shifts, node: ir.Node, shifted: Shifted) -> Array | None:
    axes = [axis - shifted[0].ndim for axis, size in enumerate(shifted[0].shape) if size > 1]
    if -1 in axes or not _is_softmax(node, -1):
        raise Refused(node.outputs[0].name or "", "Softmax", "the constant differs along its axis")
    return None


def _gemm(state: Shifts, node: ir.Node, shifted: Shifted) -> Array | None:
    weight = linear_weight(node)
    if weight is None or set(shifted) != {0}:
        raise Refused(node.outputs[0].name or "", "Gemm", "reads the sum and is no layer with a weight")
    matrix = doubles(weight).T if attribute_int(node, "transB", 0) else doubles(weight)
    wide = np.broadcast_to(shifted[0], (1, matrix.shape[0])) if shifted[0].shape[0] == 1 else None
    if wide is None:
        raise Refused(node.outputs[0].name or "", "Gemm", "the constant differs between its rows")
    bias = np.broadcast_to(state.constants.get(node, old_bias(node)), (matrix.shape[1],))
    state.constants[node] = bias + (wide @ matrix)[0]
    return None


def _moved(state: Shifts, node: ir.Node, shifted: Shifted) -> Array | None:
    view = view_of(state.shapes, node)
    if set(shifted) != {0} or view is None:
        raise Refused(node.outputs[0].name or "", node.op_type, "reads the sum as a shape")
    return narrowed(view.forward(shifted[0]))


def _concat(state: Shifts, node: ir.Node, shifted: Shifted) -> Array | None:
    """Constants beside the part take the same constant off."""
    array = next(iter(shifted.values()))
    uniform = array.shape[attribute_int(node, "axis", 0)] == 1
    others = [value for position, value in enumerate(node.inputs) if value is not None and position not in shifted]
    if len(shifted) > 1 or not uniform or not all(state.gives(value, node, -array) for value in others):
        raise Refused(node.outputs[0].name or "", "Concat", "joins the sum with what keeps its constants")
    return array


RULES: Mapping[str, Rule] = {
    "Add": _add,
    "MatMul": _matmul,
    "Gemm": _gemm,
    "Softmax": _softmax,
    "Concat": _concat,
    **dict.fromkeys(VIEWS - {"Split"}, _moved),
}
