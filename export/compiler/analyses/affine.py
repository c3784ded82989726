"""Recognises values that are an affine map of an earlier value: value = scale * root + shift, with constant arrays.

In: a graph with shapes. Out: an `Affine` for a value; scale and shift vary along at most one axis. Recognised are
BatchNormalization, arithmetic with a constant, Transpose, and a sum of two affine maps of the same root, such as a
residual connection around a BatchNormalization:

    BN(x) = D x + c,   D = gamma / sqrt(variance + epsilon),   c = beta - mean * D
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from export.compiler.errors import Refused
from export.compiler.graph.attributes import attribute_float, permutation
from export.compiler.graph.constants import Array, constant, is_constant
from export.compiler.graph.def_use import made_by, made_of
from export.compiler.graph.symbolic_shapes import Shapes, same_shape

DEFAULT_EPSILON = float(np.float32(1e-5))  # attributes of ONNX are float32
SCALING = frozenset({"BatchNormalization", "Mul", "Div"})


@dataclass(frozen=True)
class Affine:
    """value = scale * transpose(root, order) + shift.

    `scale` and `shift` are float64 with the value's rank, of size 1 along all axes but at most one. `nodes` compute the
    value from the root, in order.
    """

    root: ir.Value
    order: tuple[int, ...]
    scale: Array
    shift: Array
    nodes: tuple[ir.Node, ...] = ()

    @property
    def scales(self) -> bool:
        """Whether a node multiplies; else the map only adds constants."""
        return any(node.op_type in SCALING for node in self.nodes)

    @property
    def norms(self) -> bool:
        return any(node.op_type == "BatchNormalization" for node in self.nodes)


class Affines:
    """Finds the affine map of any value of a graph; remembers what it has computed."""

    def __init__(self, shapes: Shapes) -> None:
        self.shapes = shapes
        self._maps: dict[ir.Value, Affine] = {}

    def of(self, value: ir.Value) -> Affine:
        """The map from the earliest root; the identity if no affine node computes `value`.

        Raises Refused if the rank is unknown.
        """
        if value not in self._maps:
            rank = self.shapes.rank(value)
            identity = Affine(value, tuple(range(rank)), np.ones((1,) * rank), np.zeros((1,) * rank))
            node = value.producer()
            extended = self._through(node, value, rank) if node is not None and not node.domain else None
            self._maps[value] = extended or identity
        return self._maps[value]

    def _through(self, node: ir.Node, value: ir.Value, rank: int) -> Affine | None:
        match node.op_type:
            case "BatchNormalization":
                return self._batch_norm(node, value, rank)
            case "Mul" | "Div" | "Add" | "Sub":
                return self._arithmetic(node, value, rank)
            case "Transpose" if node.inputs[0] is not None:
                before, order = self.of(node.inputs[0]), permutation(node, rank)
                scale, shift = before.scale.transpose(order), before.shift.transpose(order)
                root_axes = tuple(before.order[axis] for axis in order)
                return Affine(before.root, root_axes, scale, shift, (*before.nodes, node))
            case _:
                return None

    def _batch_norm(self, node: ir.Node, value: ir.Value, rank: int) -> Affine | None:
        form = batch_norm(node)
        if form is None or node.inputs[0] is None or value.index():
            return None
        scale, shift = (array.reshape([1, -1] + [1] * (rank - 2)) for array in form)
        return self._then(self.of(node.inputs[0]), scale, shift, node)

    def _arithmetic(self, node: ir.Node, value: ir.Value, rank: int) -> Affine | None:
        left, right = node.inputs
        if left is None or right is None:
            return None
        if is_constant(left) == is_constant(right):
            return self._sum(node, left, right, rank) if node.op_type == "Add" and not is_constant(left) else None
        operands = arithmetic(self.shapes, node)
        if operands is None or not same_shape(self.shapes.dims(operands[0]), self.shapes.dims(value)):
            return None
        operand, scale, shift = operands
        if _is_twice_gelu(operand) or (node.op_type == "Mul" and is_normalised(operand)):
            return None
        along_one_axis = sum(size > 1 for size in (scale * shift).shape) <= 1
        if self.shapes.rank(operand) != rank or not along_one_axis:
            return None
        return self._then(self.of(operand), scale, shift, node)

    def _then(self, before: Affine, scale: Array, shift: Array, node: ir.Node) -> Affine | None:
        """`node` after `before`: scale * before + shift. None if the result varies along two axes."""
        total = scale * before.scale
        if sum(size > 1 for size in np.broadcast_shapes(total.shape, shift.shape, before.shift.shape)) > 1:
            return None
        return Affine(before.root, before.order, total, before.shift * scale + shift, (*before.nodes, node))

    def _sum(self, node: ir.Node, left: ir.Value, right: ir.Value, rank: int) -> Affine | None:
        """Of two maps of the same root, at least one of which multiplies."""
        if self.shapes.rank(left) != rank or self.shapes.rank(right) != rank:
            return None
        first, second = self.of(left), self.of(right)
        if first.root is not second.root or first.order != second.order or not (first.scales or second.scales):
            return None
        nodes = tuple(dict.fromkeys((*first.nodes, *second.nodes, node)))
        return Affine(first.root, first.order, first.scale + second.scale, first.shift + second.shift, nodes)


def batch_norm(node: ir.Node) -> tuple[Array, Array] | None:
    """Scale and shift (channels,) of a BatchNormalization; None if its constants are not known or not positive."""
    arrays = [constant(parameter) for parameter in node.inputs[1:5]]
    parameters = [array for array in arrays if array is not None]
    if len(parameters) < 4:
        return None
    gamma, beta, mean, variance = parameters
    positive_variance = variance + attribute_float(node, "epsilon", DEFAULT_EPSILON)
    if not (positive_variance > 0).all():
        return None
    scale = gamma / np.sqrt(positive_variance)
    return scale, beta - mean * scale


def _is_twice_gelu(value: ir.Value) -> bool:
    """Whether the value is x (1 + erf(x / sqrt 2)).

    The factor 1/2 after it must not be folded away: ONNX Runtime fuses both into a Gelu.
    """
    product = made_by(value, "Mul")
    sums = [made_by(factor, "Add") for factor in product.inputs] if product is not None else []
    return any(made_by(term, "Erf") for total in sums if total is not None for term in total.inputs)


def is_normalised(value: ir.Value) -> bool:
    """Whether single operators compute (x - mean) / sqrt(variance + epsilon), or x over its root mean square.

    The scale and bias after it must not be folded away: ONNX Runtime fuses all of it into a norm.
    """
    product = made_by(value, "Mul")
    quotients = [made_by(factor, "Div") for factor in (product.inputs if product is not None else [value])]
    return any(_is_deviation(quotient.inputs[1]) for quotient in quotients if quotient is not None)


def _is_deviation(value: ir.Value | None) -> bool:
    """Whether the value is sqrt(mean + epsilon)."""
    total = made_by(made_of(value, "Sqrt"), "Add")
    return total is not None and any(made_by(term, "ReduceMean") for term in total.inputs)


def arithmetic(shapes: Shapes, node: ir.Node) -> tuple[ir.Value, Array, Array] | None:
    """Reads Add, Sub, Mul or Div with a constant operand as scale * x + shift.

    Returns x, scale and shift; the arrays are float64 with the output's rank. None if both or no operands are
    constant, if x is the divisor, or if the constant is no float.
    """
    left, right = node.inputs
    number, operand, constant_first = (left, right, True) if is_constant(left) else (right, left, False)
    array, rank = constant(number), shapes.rank(node.outputs[0])
    if array is None or operand is None or is_constant(operand) or (node.op_type == "Div" and constant_first):
        return None
    if not np.issubdtype(array.dtype, np.floating) or array.ndim > rank:
        return None
    array = array.reshape((1,) * (rank - array.ndim) + array.shape)
    if node.op_type in ("Add", "Sub"):
        scale = np.full_like(array, -1.0 if node.op_type == "Sub" and constant_first else 1.0)
        return operand, scale, -array if node.op_type == "Sub" and not constant_first else array
    with np.errstate(divide="ignore"):
        scale = array if node.op_type == "Mul" else 1 / array
    return (operand, scale, np.zeros_like(array)) if np.isfinite(scale).all() else None


def constant_term(shapes: Shapes, node: ir.Node) -> tuple[ir.Value, Array] | None:
    """Reads an Add as x + constant, where x has the sum's shape.

    Returns x and the constant, with the sum's rank; None for another node.
    """
    operands = arithmetic(shapes, node) if node.op_type == "Add" and not node.domain else None
    if operands is None or not same_shape(shapes.dims(operands[0]), shapes.dims(node.outputs[0])):
        return None
    return operands[0], operands[2]


def axis_of(scale: Array, shift: Array) -> int | None:
    """The axis along which scale or shift varies; None if both are a single number. Raises Refused for two axes."""
    shape = np.broadcast_shapes(scale.shape, shift.shape)
    varying = [axis for axis, size in enumerate(shape) if size > 1]
    if len(varying) > 1:
        raise Refused("", "scale", f"varies along the axes {varying}")
    return varying[0] if varying else None
