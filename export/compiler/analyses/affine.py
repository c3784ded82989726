"""Finds values that are another value, scaled and shifted by constants.

In: a graph with shapes. Out: `Affine`, with scale and shift along at most one axis. Such maps are BatchNormalization,
arithmetic with a constant, and a sum of two maps of the same root (a residual around a norm):

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
from export.compiler.graph.shapes import Shapes, same_shape

DEFAULT_EPSILON = float(np.float32(1e-5))  # attributes of ONNX are float32
SCALING = frozenset({"BatchNormalization", "Mul", "Div"})


@dataclass(frozen=True)
class Affine:
    """value = scale * transpose(root, order) + shift; `nodes` compute it from the root."""

    root: ir.Value
    order: tuple[int, ...]
    scale: Array
    shift: Array
    nodes: tuple[ir.Node, ...] = ()

    @property
    def scales(self) -> bool:
        return any(node.op_type in SCALING for node in self.nodes)

    @property
    def norms(self) -> bool:
        return any(node.op_type == "BatchNormalization" for node in self.nodes)


class Affines:
    def __init__(self, shapes: Shapes) -> None:
        self.shapes = shapes
        self._known: dict[ir.Value, Affine] = {}

    def of(self, value: ir.Value) -> Affine:
        """Raises Refused if the rank is unknown."""
        if value not in self._known:
            rank = self.shapes.rank(value)
            plain = Affine(value, tuple(range(rank)), np.ones((1,) * rank), np.zeros((1,) * rank))
            node = value.producer()
            form = self._through(node, value, rank) if node is not None and not node.domain else None
            self._known[value] = form or plain
        return self._known[value]

    def _through(self, node: ir.Node, value: ir.Value, rank: int) -> Affine | None:
        match node.op_type:
            case "BatchNormalization":
                return self._norm(node, value, rank)
            case "Mul" | "Div" | "Add" | "Sub":
                return self._arithmetic(node, value, rank)
            case "Transpose" if node.inputs[0] is not None:
                before, order = self.of(node.inputs[0]), permutation(node, rank)
                scale, shift = before.scale.transpose(order), before.shift.transpose(order)
                places = tuple(before.order[axis] for axis in order)
                return Affine(before.root, places, scale, shift, (*before.nodes, node))
            case _:
                return None

    def _norm(self, node: ir.Node, value: ir.Value, rank: int) -> Affine | None:
        arrays = [constant(given) for given in node.inputs[1:5]]
        held = [array for array in arrays if array is not None]
        if len(held) < 4 or node.inputs[0] is None or value.index():
            return None
        gamma, beta, mean, variance = (array.reshape([1, -1] + [1] * (rank - 2)) for array in held)
        spread = variance + attribute_float(node, "epsilon", DEFAULT_EPSILON)
        if not (spread > 0).all():
            return None
        scale = gamma / np.sqrt(spread)
        return self._then(self.of(node.inputs[0]), scale, beta - mean * scale, node)

    def _arithmetic(self, node: ir.Node, value: ir.Value, rank: int) -> Affine | None:
        left, right = node.inputs
        if left is None or right is None:
            return None
        if is_constant(left) == is_constant(right):
            return self._sum(node, left, right, rank) if node.op_type == "Add" and not is_constant(left) else None
        made = arithmetic(self.shapes, node)
        if made is None or not same_shape(self.shapes.dims(made[0]), self.shapes.dims(value)):
            return None
        other, scale, shift = made
        if _is_twice_gelu(other) or (node.op_type == "Mul" and is_normalised(other)):
            return None
        alike = self.shapes.rank(other) == rank and sum(size > 1 for size in (scale * shift).shape) <= 1
        return self._then(self.of(other), scale, shift, node) if alike else None

    def _then(self, before: Affine, scale: Array, shift: Array, node: ir.Node) -> Affine | None:
        total = scale * before.scale
        if sum(size > 1 for size in np.broadcast_shapes(total.shape, shift.shape, before.shift.shape)) > 1:
            return None
        return Affine(before.root, before.order, total, before.shift * scale + shift, (*before.nodes, node))

    def _sum(self, node: ir.Node, left: ir.Value, right: ir.Value, rank: int) -> Affine | None:
        if self.shapes.rank(left) != rank or self.shapes.rank(right) != rank:
            return None
        first, second = self.of(left), self.of(right)
        if first.root is not second.root or first.order != second.order or not (first.scales or second.scales):
            return None
        nodes = tuple(dict.fromkeys((*first.nodes, *second.nodes, node)))
        return Affine(first.root, first.order, first.scale + second.scale, first.shift + second.shift, nodes)


def _is_twice_gelu(value: ir.Value) -> bool:
    """x (1 + erf(x / sqrt 2)). Its half stays beside it: together ONNX Runtime computes them as one Gelu."""
    product = made_by(value, "Mul")
    sums = [made_by(given, "Add") for given in product.inputs] if product is not None else []
    return any(made_by(given, "Erf") for total in sums if total is not None for given in total.inputs)


def is_normalised(value: ir.Value) -> bool:
    """(x - mean) / sqrt(variance + epsilon), or x over its root mean square, in single operators.

    Its scale and bias stay beside it: together ONNX Runtime computes them as one norm.
    """
    product = made_by(value, "Mul")
    quotients = [made_by(factor, "Div") for factor in (product.inputs if product is not None else [value])]
    return any(_is_deviation(quotient.inputs[1]) for quotient in quotients if quotient is not None)


def _is_deviation(value: ir.Value | None) -> bool:
    """sqrt(mean + epsilon)."""
    total = made_by(made_of(value, "Sqrt"), "Add")
    return total is not None and any(made_by(term, "ReduceMean") for term in total.inputs)


def arithmetic(shapes: Shapes, node: ir.Node) -> tuple[ir.Value, Array, Array] | None:
    """x, scale and shift of Add, Sub, Mul or Div, scale * x + shift with constants of the output's axes."""
    left, right = node.inputs
    number, other, first = (left, right, True) if is_constant(left) else (right, left, False)
    array, rank = constant(number), shapes.rank(node.outputs[0])
    if array is None or other is None or is_constant(other) or (node.op_type == "Div" and first):
        return None
    if not np.issubdtype(array.dtype, np.floating) or array.ndim > rank:
        return None
    factor = array.reshape((1,) * (rank - array.ndim) + array.shape)
    one, zero = np.ones_like(factor), np.zeros_like(factor)
    with np.errstate(divide="ignore"):
        scale, shift = {
            "Mul": (factor, zero),
            "Div": (1 / factor, zero),
            "Add": (one, factor),
            "Sub": (-one, factor) if first else (one, -factor),
        }[node.op_type]
    return (other, scale, shift) if np.isfinite(scale).all() else None


def constant_term(shapes: Shapes, node: ir.Node | None, held: Array | None = None) -> tuple[ir.Value, Array] | None:
    """Of a sum with a constant: the other term, of the sum's shape, and the constant, or `held`, with all axes."""
    if node is None or node.op_type != "Add" or node.domain:
        return None
    out = shapes.dims(node.outputs[0])
    for value, number in (node.inputs, reversed(node.inputs)):
        array = constant(number) if held is None else held
        if value is None or is_constant(value) or not is_constant(number) or array is None or array.ndim > len(out):
            continue
        if same_shape(shapes.dims(value), out):
            return value, array.reshape((1,) * (len(out) - array.ndim) + array.shape)
    return None


def axis_of(scale: Array, shift: Array) -> int | None:
    """Raises Refused for several axes."""
    shape = np.broadcast_shapes(scale.shape, shift.shape)
    varying = [axis for axis, size in enumerate(shape) if size > 1]
    if len(varying) > 1:
        raise Refused("", "scale", f"varies along the axes {varying}")
    return varying[0] if varying else None
