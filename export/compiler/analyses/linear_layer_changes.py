"""A change of a linear layer's weight and bias, and helpers that read both from MatMul, Gemm, Conv and ConvTranspose.

In: a node. Out: its weight and bias, or a planned `Change`; `fold_downstream` and `fold_upstream` have the equations.
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
    """A planned change of a node's constants, in float64; nothing is changed yet.

    `weight` computes the new weight (the new constant of an Add), which has the shape `shape`. `bias` is the new bias
    of Gemm, Conv and ConvTranspose; for other nodes it is added to the output. `epsilon` is a norm's new epsilon.
    """

    node: ir.Node
    weight: Callable[[], Array]
    shape: tuple[int, ...]
    bias: Array
    epsilon: float | None = None


def linear_weight(node: ir.Node) -> ir.Value | None:
    """The constant weight of a MatMul, Gemm or Conv; None for other nodes and for scaled or transposed inputs."""
    if node.domain or node.op_type not in ("MatMul", "Gemm", "Conv"):
        return None
    weight = optional(node, 1)
    if weight is None or not is_constant(weight) or (node.op_type == "MatMul" and len(shape_of(weight)) != 2):
        return None
    unscaled = attribute_float(node, "alpha", 1.0) == 1.0 == attribute_float(node, "beta", 1.0)
    return weight if unscaled and not attribute_int(node, "transA", 0) else None


def matrix(node: ir.Node | None) -> Array | None:
    """The constant weight (inputs, outputs) of a MatMul, in float64; None for other nodes."""
    weight = linear_weight(node) if node is not None and node.op_type == "MatMul" else None
    return doubles(weight) if weight is not None else None


def shape_of(weight: ir.Value) -> tuple[int, ...]:
    return tuple(weight.const_value.shape.numpy()) if weight.const_value is not None else ()


def scaled(node: ir.Node, weight: ir.Value, factor: Array, bias: Array) -> Change:
    """The change that multiplies the weight by `factor`, elementwise with broadcast."""
    return Change(node, lambda: doubles(weight) * factor, shape_of(weight), bias)


def old_bias(node: ir.Node) -> Array:
    """The bias as a float64 row; a single 0 without a bias. Raises Refused for a bias that is no constant row."""
    value = optional(node, 2)
    if value is None:
        return np.zeros(1)
    bias = constant(value)
    if bias is None or bias.size != max(bias.shape[-1:], default=1):
        raise Refused.at(node, "expected a constant row as bias")
    return bias.reshape(-1)


def narrowed(array: Array) -> Array:
    """The same numbers with size 1 along every axis where they do not vary; inverts a broadcast."""
    for axis, size in enumerate(array.shape):
        if size > 1 and (array == array.take([0], axis)).all():
            array = array.take([0], axis)
    return array


def expect_channels(node: ir.Node, axis: int | None, channels: int) -> None:
    """Raises Refused if the map varies along an axis other than the layer's axis of channels."""
    if axis is not None and axis != channels:
        raise Refused.at(node, f"expected a map along axis {channels}, found it along axis {axis}")


def by_feature(features: int, *arrays: Array) -> list[Array]:
    """Arrays that vary along one axis at most as vectors of this many features."""
    return [np.broadcast_to(array.reshape(-1), (features,)) for array in arrays]


def is_transposed(node: ir.Node) -> bool:
    """Whether a layer is a Gemm whose weight is (outputs, inputs)."""
    return node.op_type == "Gemm" and bool(attribute_int(node, "transB", 0))


def outputs_of(node: ir.Node, shape: Sequence[int]) -> int:
    """The number of output features of a linear layer whose weight has this shape."""
    if node.op_type == "ConvTranspose":
        return shape[1] * attribute_int(node, "group", 1)
    return shape[0 if node.op_type in ("Conv", "BatchNormalization") or is_transposed(node) else 1]


def by_output(node: ir.Node, shape: Sequence[int], numbers: Array) -> Array:
    """A number for each output feature in a form that broadcasts to the layer's weight, which has this shape.

    Of a ConvTranspose the weight is (inputs, outputs / groups, ...): a group of inputs makes a group of outputs.
    """
    if node.op_type == "ConvTranspose":
        groups = attribute_int(node, "group", 1)
        by_input = np.repeat(numbers.reshape(groups, -1), shape[0] // groups, axis=0)
        return by_input.reshape(*shape[:2], *[1] * (len(shape) - 2))
    outputs_first = node.op_type == "Conv" or is_transposed(node)
    return numbers.reshape(-1, *[1] * (len(shape) - 1)) if outputs_first else numbers
