"""How the linear operators beside an affine map take it up.

In: a value, and scale and shift along its axes. Out: `Change`s of the nodes before or after it; Refused if a node
cannot take it up. For a weight W of inputs by outputs:

    after a linear layer:   D (x W + b) + c = x (W D) + (D b + c)
    before a linear layer:  (D x + c) W + b = x (D W) + (c W + b)
    before a norm, for numbers s and c:  norm(s x + c; epsilon) = sign(s) norm(x; epsilon / s^2)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from export.compiler.errors import Refused
from export.compiler.graph.attributes import attribute_float, attribute_int, optional
from export.compiler.graph.constants import Array, constant, doubles, is_constant


@dataclass(frozen=True)
class Change:
    """`weight` computes the new weight, of an Add its constant; `shape` is its shape. `bias` is added to the output; of
    Gemm, Conv and ConvTranspose it is the whole new bias. `epsilon`: a norm's new one.
    """

    node: ir.Node
    weight: Callable[[], Array]
    shape: tuple[int, ...]
    bias: Array
    epsilon: float | None = None


def linear_weight(node: ir.Node) -> ir.Value | None:
    if node.domain or node.op_type not in ("MatMul", "Gemm", "Conv"):
        return None
    weight = optional(node, 1)
    if weight is None or not is_constant(weight) or (node.op_type == "MatMul" and len(shape_of(weight)) != 2):
        return None
    plain = attribute_float(node, "alpha", 1.0) == 1.0 == attribute_float(node, "beta", 1.0)
    return weight if plain and not attribute_int(node, "transA", 0) else None


def shape_of(weight: ir.Value) -> tuple[int, ...]:
    return tuple(weight.const_value.shape.numpy()) if weight.const_value is not None else ()


def scaled(node: ir.Node, weight: ir.Value, factor: Array, bias: Array) -> Change:
    return Change(node, lambda: doubles(weight) * factor, shape_of(weight), bias)


def old_bias(node: ir.Node) -> Array:
    """Raises Refused for a bias that is no constant row."""
    value = optional(node, 2)
    if value is None:
        return np.zeros(1)
    bias = constant(value)
    if bias is None or bias.size != max(bias.shape[-1:], default=1):
        raise Refused.at(node, "expected a constant row as bias")
    return bias.reshape(-1)


def narrowed(array: Array) -> Array:
    """Without the axes along which it is alike, which keep size 1."""
    for axis, size in enumerate(array.shape):
        if size > 1 and (array == array.take([0], axis)).all():
            array = array.take([0], axis)
    return array


def expect_channels(node: ir.Node, axis: int | None, channels: int) -> None:
    if axis is not None and axis != channels:
        what = f"expected a map along axis {channels}, found it along axis {axis}"
        raise Refused.at(node, what)


def outputs_of(node: ir.Node, shape: Sequence[int]) -> int:
    """Of a linear layer with a weight of this shape."""
    if node.op_type == "ConvTranspose":
        return shape[1] * attribute_int(node, "group", 1)
    return shape[0 if node.op_type == "Conv" or (node.op_type == "Gemm" and attribute_int(node, "transB", 0)) else 1]
