"""How the linear operators beside an affine map take it up.

In: a value, and scale and shift along its axes. Out: `Change`s of the nodes before or after it; Refused if a node
cannot take it up. For a weight W of inputs by outputs:

    after a linear layer:   D (x W + b) + c = x (W D) + (D b + c)
    before a linear layer:  (D x + c) W + b = x (D W) + (c W + b)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from export.compiler.analyses.affine import Array, axis_of
from export.compiler.errors import Refused
from export.compiler.graph.attributes import (
    attribute_float,
    attribute_int,
    attribute_ints,
    attribute_string,
    axes_of,
    permutation,
    reads_shape_alone,
)
from export.compiler.graph.constants import constant, doubles, is_constant
from export.compiler.graph.shapes import Shapes, groups, same
from export.compiler.operators.boxes import WHOLE
from export.compiler.operators.moves import RESHAPES, demand_of


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


def _scaled(node: ir.Node, weight: ir.Value, factor: Array, bias: Array) -> Change:
    return Change(node, lambda: doubles(weight) * factor, shape_of(weight), bias)


def old_bias(node: ir.Node) -> Array:
    """Raises Refused for a bias that is no constant row."""
    if len(node.inputs) < 3 or node.inputs[2] is None:
        return np.zeros(1)
    bias = constant(node.inputs[2])
    if bias is None or bias.size != max(bias.shape[-1:], default=1):
        raise Refused(node.outputs[0].name or "", node.op_type, "expected a constant row as bias")
    return bias.astype(np.float64).reshape(-1)


def before(shapes: Shapes, value: ir.Value, scale: Array, shift: Array, inside: set[ir.Node]) -> list[Change]:
    """The changes that turn `value` into scale * value + shift; raises Refused if a node outside `inside` reads it."""
    node, name = value.producer(), value.name or ""
    others = [use.node for use in value.uses() if use.node not in inside and not reads_shape_alone(use.node)]
    if others or value.is_graph_output():
        raise Refused(name, node.op_type if node else "graph input", "is read elsewhere, too")
    if node is None or node.domain:
        raise Refused(name, "graph input", "is no linear layer")
    axis, rank = axis_of(scale, shift), shapes.rank(value)
    weight, source = linear_weight(node), node.inputs[0]
    if weight is not None:
        _expect(node, axis, rank - 1 if node.op_type == "MatMul" else 1)
        outputs = outputs_of(node, shape_of(weight))
        wide_scale, wide_shift = (np.broadcast_to(array.reshape(-1), (outputs,)) for array in (scale, shift))
        if node.op_type == "MatMul":
            return [_scaled(node, weight, wide_scale, wide_shift)]
        first = node.op_type == "Conv" or bool(attribute_int(node, "transB", 0))
        along = wide_scale.reshape(-1, *[1] * (len(shape_of(weight)) - 1)) if first else wide_scale
        return [_scaled(node, weight, along, old_bias(node) * wide_scale + wide_shift)]
    if source is None or value.index():
        raise Refused(name, node.op_type, "is no linear layer")
    if node.op_type == "Add":
        return _bias_before(shapes, node, value, scale, shift)
    if node.op_type == "Transpose":
        back = np.argsort(permutation(node, rank))
        return before(shapes, source, scale.transpose(back), shift.transpose(back), {node})
    if node.op_type in RESHAPES:
        scale, shift = (reshaped(shapes, array, value, source) for array in (scale, shift))
        return before(shapes, source, scale, shift, {node})
    raise Refused(name, node.op_type, "is no linear layer")


def _bias_before(shapes: Shapes, node: ir.Node, value: ir.Value, scale: Array, shift: Array) -> list[Change]:
    """scale * (x + b) + shift = scale * x + (scale * b + shift)."""
    number = next((given for given in node.inputs if is_constant(given)), None)
    source = next((given for given in node.inputs if not is_constant(given)), None)
    bias = constant(number)
    if bias is None or source is None or not all(map(same, shapes.dims(source), shapes.dims(value))):
        raise Refused(value.name or "", "Add", "is no linear layer")
    rank = shapes.rank(value)
    total = scale * bias.astype(np.float64).reshape((1,) * (rank - bias.ndim) + bias.shape) + shift
    while total.ndim > 1 and total.shape[0] == 1:  # exporters write a bias with leading axes
        total = total[0]
    return [
        Change(node, lambda: total, total.shape, np.zeros(1)),
        *before(shapes, source, scale, np.zeros_like(shift), {node}),
    ]


def after(shapes: Shapes, value: ir.Value, scale: Array, shift: Array) -> list[Change]:
    """The changes that let all linear readers of `value` read its root instead."""
    if value.is_graph_output():
        raise Refused(value.name or "", "graph output", "is read by the graph's user")
    uses = [use for use in value.uses() if not reads_shape_alone(use.node)]
    changes: list[Change] = []
    for use in uses:
        if use.idx or use.node.domain:
            raise Refused(value.name or "", use.node.op_type, "reads it as more than its first input")
        changes += _after(shapes, use.node, value, scale, shift)
    if not changes or len({change.node for change in changes}) < len(changes):
        raise Refused(value.name or "", "", "no linear layer reads it")
    return changes


def _after(shapes: Shapes, node: ir.Node, value: ir.Value, scale: Array, shift: Array) -> Iterable[Change]:
    axis, rank = axis_of(scale, shift), shapes.rank(value)
    weight = linear_weight(node)
    if weight is not None:
        _expect(node, axis, rank - 1 if node.op_type == "MatMul" else 1)
        return (
            [_conv_after(shapes, node, weight, scale, shift)]
            if node.op_type == "Conv"
            else [_matrix_after(node, weight, scale, shift)]
        )
    if node.op_type == "Transpose":
        order = permutation(node, rank)
        return after(shapes, node.outputs[0], scale.transpose(order), shift.transpose(order))
    if node.op_type in RESHAPES:
        arrays = (reshaped(shapes, array, value, node.outputs[0]) for array in (scale, shift))
        return after(shapes, node.outputs[0], *arrays)
    if node.op_type in ("ReduceMean", "GlobalAveragePool"):
        return _mean_after(shapes, node, rank, axis, scale, shift)
    if node.op_type in ("Slice", "Split", "Gather"):
        return _part_after(shapes, node, value, axis, scale, shift)
    raise Refused(value.name or "", node.op_type, "reads it and is no linear layer")


def _part_after(
    shapes: Shapes, node: ir.Node, value: ir.Value, axis: int | None, scale: Array, shift: Array
) -> Iterable[Change]:
    """A part of the value gets the same part of the map; a scalar Gather drops its axis."""
    changes: list[Change] = []
    indices = node.inputs[1] if node.op_type == "Gather" else None
    own = attribute_int(node, "axis", 0) % shapes.rank(value) if indices is not None else None
    if indices is not None and shapes.rank(indices) > 1:
        raise Refused(value.name or "", "Gather", "picks more than a vector")
    for index, output in enumerate(node.outputs):
        if not output.uses() and not output.is_graph_output():
            continue
        chosen = dict(demand_of(shapes, node, index, WHOLE).inputs.get(0, WHOLE))
        dropped = indices is not None and not shapes.rank(indices)
        if axis is not None and axis not in chosen:
            whole = not dropped or own != axis
            if not whole or not same(
                shapes.dims(output)[axis - int(dropped and own is not None and own < axis)], shapes.dims(value)[axis]
            ):
                raise Refused(output.name or "", node.op_type, "picks channels that are not known")
        cut = [_taken(array, axis, chosen) for array in (scale, shift)]
        if dropped and own is not None:
            cut = [np.squeeze(array, own) for array in cut]
        changes += after(shapes, output, *cut)
    return changes


def _taken(array: Array, axis: int | None, chosen: dict[int, tuple[int, ...]]) -> Array:
    wanted = axis is not None and axis in chosen and array.shape[axis] > 1
    return np.take(array, chosen[axis], axis=axis) if wanted and axis is not None else array


def _matrix_after(node: ir.Node, weight: ir.Value, scale: Array, shift: Array) -> Change:
    turned = node.op_type == "Gemm" and bool(attribute_int(node, "transB", 0))
    features = shape_of(weight)[1 if turned else 0]
    wide_scale, wide_shift = (np.broadcast_to(array.reshape(-1), (features,)) for array in (scale, shift))
    bias = old_bias(node) if node.op_type == "Gemm" else np.zeros(1)
    if shift.any():
        bias = bias + (doubles(weight) @ wide_shift if turned else wide_shift @ doubles(weight))
    return _scaled(node, weight, wide_scale if turned else wide_scale[:, None], bias)


def _conv_after(shapes: Shapes, node: ir.Node, value: ir.Value, scale: Array, shift: Array) -> Change:
    padded = any(attribute_ints(node, "pads") or []) or attribute_string(node, "auto_pad", "NOTSET") not in (
        "NOTSET",
        "VALID",
    )
    if shift.any() and padded:
        raise Refused(node.outputs[0].name or "", "Conv", "is padded: the padding would need the shift, too")
    weight, count = doubles(value), attribute_int(node, "group", 1)
    channels, ones = weight.shape[1] * count, [1] * (weight.ndim - 2)
    grouped = weight.reshape(count, -1, *weight.shape[1:])
    wide = [np.broadcast_to(array.reshape(-1), (channels,)).reshape(count, 1, -1, *ones) for array in (scale, shift)]
    gained = (grouped * wide[1]).reshape(weight.shape[0], -1).sum(1)
    scaled = (grouped * wide[0]).reshape(weight.shape)
    return Change(node, lambda: scaled, weight.shape, old_bias(node) + gained)


def _mean_after(
    shapes: Shapes, node: ir.Node, rank: int, axis: int | None, scale: Array, shift: Array
) -> Iterable[Change]:
    """A mean passes the map on unless it reduces the channels."""
    given = list(range(2, rank)) if node.op_type == "GlobalAveragePool" else axes_of(node)
    reduced = {own % rank for own in given or range(rank)}
    if axis in reduced:
        raise Refused(node.outputs[0].name or "", node.op_type, "is a mean over the channels")
    if node.op_type == "GlobalAveragePool" or attribute_int(node, "keepdims", 1):
        return after(shapes, node.outputs[0], scale, shift)
    squeezed = (np.squeeze(array, tuple(own for own in reduced)) for array in (scale, shift))
    return after(shapes, node.outputs[0], *squeezed)


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


def _expect(node: ir.Node, axis: int | None, channels: int) -> None:
    if axis is not None and axis != channels:
        what = f"expected a map along axis {channels}, found it along axis {axis}"
        raise Refused(node.outputs[0].name or "", node.op_type, what)


def outputs_of(node: ir.Node, shape: Sequence[int]) -> int:
    """Of a linear layer with a weight of this shape."""
    return shape[0 if node.op_type == "Conv" or (node.op_type == "Gemm" and attribute_int(node, "transB", 0)) else 1]
