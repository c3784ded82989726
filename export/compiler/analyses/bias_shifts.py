"""Follows a bias that is left out of a value to the later sums that can add it at no cost.

In: a graph with shapes, and values v that become v - s. Out: the new constants of the later sums, so that the graph's
outputs stay; or Refused. For a shift s of X, a weight W, and rows A of a softmax:

    (X - s) W = X W - s W      A (X - s) = A X - s      softmax(q (X - s)') = softmax(q X')      X - s + (c + s) = X + c
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from export.compiler.analyses.affine import constant_term
from export.compiler.analyses.empty_axes import may_sum_to_zero
from export.compiler.analyses.linear_layer_changes import is_transposed, linear_weight, narrowed, old_bias
from export.compiler.errors import Refused
from export.compiler.graph.attributes import attribute_int, given, mixes_last_axis, optional, reads_shape_alone
from export.compiler.graph.constants import Array, constant, doubles
from export.compiler.graph.def_use import only_reader, readers
from export.compiler.graph.symbolic_shapes import Shapes
from export.compiler.operators.table import VIEWS, view_of

LARGEST_SHIFT = 100.0  # float32 still keeps the 1e-5 of features of 1 to 10


@dataclass
class Shifts:
    """What changes if biases are left out: values that become smaller, and constants that make up for them.

    `shifts`: for every value that becomes v - s, the s, with the value's rank. `constants`: the new constants of nodes:
    of an Add its term, of an Expand what it repeats, of LayerNormalization and Gemm their bias.
    """

    shapes: Shapes
    shifts: dict[ir.Value, Array] = field(default_factory=dict)
    constants: dict[ir.Node, Array] = field(default_factory=dict)

    def follow(self, nodes: Iterable[ir.Node]) -> None:
        """Passes the shifts through `nodes`, which are in the graph's order.

        Raises Refused at a reader whose output would change and that no later sum can correct.
        """
        for node in nodes:
            shifted = {k: self.shifts[value] for k, value in enumerate(node.inputs) if value in self.shifts}
            if not shifted or reads_shape_alone(node):
                continue
            rule = RULES.get(node.op_type) if not node.domain else None
            if rule is None:
                raise Refused.at(node, "reads the sum and is not linear")
            self.shift(node.outputs[0], rule(self, node, shifted))
        for value in self.shifts:
            if value.is_graph_output():
                raise Refused(value.name or "", "graph output", "its constant is read by the graph's user")

    def shift(self, value: ir.Value, array: Array | None) -> None:
        """Notes that `value` becomes value - array; None: it stays. Raises Refused for a shift that costs precision."""
        if array is None or not array.any():
            return
        array = array.reshape((1,) * (self.shapes.rank(value) - array.ndim) + array.shape)
        if not np.abs(array).max() <= LARGEST_SHIFT:
            raise Refused(value.name or "", "Add", f"float32 would round behind a constant over {LARGEST_SHIFT:.0f}")
        self.shifts[value] = array

    def add_at(self, node: ir.Node, array: Array) -> bool:
        """Lets a node add `array` more: an Add with a constant, an Expand of a constant, or LayerNormalization.

        Returns False for other nodes, which stay.
        """
        source = constant(node.inputs[0]) if node.op_type == "Expand" and not node.domain else None
        term = constant_term(self.shapes, node)
        if term is not None:
            self.constants[node] = self.constants.get(node, term[1]) + array
        elif source is not None:
            self.constants[node] = self.constants.get(node, source) + array
        elif node.op_type == "LayerNormalization" and (old := constant(optional(node, 2))) is not None:
            bias = self.constants.get(node, old)
            if bias.ndim != 1 or not array.size == array.shape[-1] == bias.size:
                return False
            self.constants[node] = bias + array.reshape(-1)
        else:
            return False
        return True

    def add_before(self, value: ir.Value, reader: ir.Node, array: Array) -> bool:
        """Lets the node that computes `value` add `array` more, as `add_at`.

        Returns False, and changes nothing, if another node than `reader` reads the value or the node cannot.
        """
        producer = value.producer()
        unshared = readers(value) == [reader] and not value.is_graph_output()
        return producer is not None and not value.index() and unshared and self.add_at(producer, array)


Shifted = Mapping[int, Array]  # the shifts of a node's inputs, by position
Rule = Callable[[Shifts, ir.Node, Shifted], Array | None]
"""The shift of the node's output, or None if the output stays. Raises Refused."""


def _add(state: Shifts, node: ir.Node, shifted: Shifted) -> Array | None:
    total = sum(shifted.values(), np.zeros(1))
    if state.add_at(node, total):
        return None
    others = [value for value in node.inputs if value is not None and value not in state.shifts]
    if not total.any() or any(state.add_before(value, node, total) for value in others):
        return None
    return np.asarray(total)


def _matmul(state: Shifts, node: ir.Node, shifted: Shifted) -> Array | None:
    left, weight = given(node, 0), linear_weight(node)
    if len(shifted) > 1:
        raise Refused.at(node, "multiplies two sums")
    if 0 in shifted and weight is not None:
        wide = np.broadcast_to(shifted[0], (*shifted[0].shape[:-1], doubles(weight).shape[0]))
        return np.asarray(wide @ doubles(weight))
    reader = only_reader(node.outputs[0])
    if 1 in shifted and shifted[1].shape[-1] == 1 and reader is not None and _is_softmax(reader):
        return None  # the scores of a query shift alike for all keys, which the softmax ignores
    producer = left.producer()
    if 1 in shifted and shifted[1].shape[-2] == 1 and producer is not None and _is_softmax(producer):
        if may_sum_to_zero(state.shapes, left):
            raise Refused.at(node, "pools the sum, perhaps over no token")
        return shifted[1]  # the weights of a row sum to one
    raise Refused.at(node, "multiplies the sum by what is no weight")


def _is_softmax(node: ir.Node) -> bool:
    """Whether the node is a softmax over its last axis alone."""
    shape = node.outputs[0].shape if node.op_type == "Softmax" and not node.domain else None
    return shape is not None and mixes_last_axis(node, shape.rank())


def _softmax(state: Shifts, node: ir.Node, shifted: Shifted) -> Array | None:
    axes = [axis - shifted[0].ndim for axis, size in enumerate(shifted[0].shape) if size > 1]
    if -1 in axes or not _is_softmax(node):
        raise Refused.at(node, "the constant differs along its axis")
    return None


def _gemm(state: Shifts, node: ir.Node, shifted: Shifted) -> Array | None:
    weight = linear_weight(node)
    if weight is None or set(shifted) != {0}:
        raise Refused.at(node, "reads the sum and is no layer with a weight")
    matrix = doubles(weight).T if is_transposed(node) else doubles(weight)
    wide = np.broadcast_to(shifted[0], (1, matrix.shape[0])) if shifted[0].shape[0] == 1 else None
    if wide is None:
        raise Refused.at(node, "the constant differs between its rows")
    bias = np.broadcast_to(state.constants.get(node, old_bias(node)), (matrix.shape[1],))
    state.constants[node] = bias + (wide @ matrix)[0]
    return None


def _view(state: Shifts, node: ir.Node, shifted: Shifted) -> Array | None:
    view = view_of(state.shapes, node)
    if set(shifted) != {0} or view is None:
        raise Refused.at(node, "reads the sum as a shape")
    return narrowed(view.forward(shifted[0]))


def _concat(state: Shifts, node: ir.Node, shifted: Shifted) -> Array | None:
    """All other joined values must lose the same constant: they are constants that can."""
    array = next(iter(shifted.values()))
    uniform = array.shape[attribute_int(node, "axis", 0)] == 1
    others = [value for position, value in enumerate(node.inputs) if value is not None and position not in shifted]
    if len(shifted) > 1 or not uniform or not all(state.add_before(value, node, -array) for value in others):
        raise Refused.at(node, "joins the sum with what keeps its constants")
    return array


RULES: Mapping[str, Rule] = {
    "Add": _add,
    "MatMul": _matmul,
    "Gemm": _gemm,
    "Softmax": _softmax,
    "Concat": _concat,
    **dict.fromkeys(VIEWS - {"Split"}, _view),
}
