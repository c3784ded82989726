"""How the linear operators beside an affine map take it up.

In: a value, and scale and shift along its axes. Out: `Change`s of the nodes before or after it; Refused if a node
cannot take it up. For a weight W of inputs by outputs:

    after a linear layer:   D (x W + b) + c = x (W D) + (D b + c)
    before a linear layer:  (D x + c) W + b = x (D W) + (c W + b)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from export.compiler.analyses.affine import Array
from export.compiler.errors import Refused
from export.compiler.graph.attributes import (
    attribute_float,
    attribute_int,
)
from export.compiler.graph.constants import constant, doubles, is_constant
from export.compiler.graph.shapes import Shapes, groups


@dataclass(frozen=True)
class Change:
    """`weight` computes the new weight, of an Add its constant; `shape` is its shape. `bias` is added to the output; of
    Gemm and Conv it is the whole new bias.
    """

    node: ir.Node
    weight: Callable[[], Array]
    shape: tuple[int, ...]
    bias: Array


def linear_weight(node: ir.Node) -> ir.Value | None:
    if node.domain or node.op_type not in ("MatMul", "Gemm", "Conv") or len(node.inputs) < 2:
        return None
    weight = node.inputs[1]
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
    if len(node.inputs) < 3 or node.inputs[2] is None:
        return np.zeros(1)
    bias = constant(node.inputs[2])
    if bias is None or bias.size != max(bias.shape[-1:], default=1):
        raise Refused(node.outputs[0].name or "", node.op_type, "expected a constant row as bias")
    return bias.astype(np.float64).reshape(-1)


def reshaped(shapes: Shapes, array: Array, value: ir.Value, other: ir.Value) -> Array:
    """Moves an array from the axes of `value` to those of its reshape `other`."""
    old, new = shapes.dims(value), shapes.dims(other)
    wanted, result = list(array.shape), [1] * len(new)
    for left, right in groups(shapes, old, new) or [(list(range(len(old))), list(range(len(new))))]:
        if any(array.shape[axis] > 1 for axis in left):
            sizes = [(old[axis]) for axis in left], [(new[axis]) for axis in right]
            numbers = [[size for size in run if isinstance(size, int)] for run in sizes]
            if any(len(known) < len(run) for known, run in zip(numbers, sizes, strict=True)):
                raise Refused(other.name or "", "Reshape", "joins the channels with a free dimension")
            for axis, size in zip(left, numbers[0], strict=True):
                wanted[axis] = size
            for axis, size in zip(right, numbers[1], strict=True):
                result[axis] = size
    if np.prod(wanted) != np.prod(result):
        raise Refused(other.name or "", "Reshape", "joins the channels with others")
    spread = np.broadcast_to(array, wanted).reshape(result)
    for axis, size in enumerate(result):  # drop axes along which the array is constant
        if size > 1 and (spread == spread.take([0], axis)).all():
            spread = spread.take([0], axis)
    return spread


def expect_channels(node: ir.Node, axis: int | None, channels: int) -> None:
    if axis is not None and axis != channels:
        what = f"expected a map along axis {channels}, found it along axis {axis}"
        raise Refused(node.outputs[0].name or "", node.op_type, what)


def outputs_of(node: ir.Node, shape: Sequence[int]) -> int:
    """Of a linear layer with a weight of this shape."""
    return shape[0 if node.op_type == "Conv" or (node.op_type == "Gemm" and attribute_int(node, "transB", 0)) else 1]
