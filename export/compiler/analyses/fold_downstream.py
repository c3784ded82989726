"""Folds an affine map into the linear layers and norms that read its result.

In: a value that is scale * root + shift, with both arrays. Out: a `Change` of weights for each reader, after which all
readers may read the root instead of the value; Refused if a reader cannot:

    (D x + c) W + b = x (D W) + (c W + b)
    (D x + c) + Y W + b = D (x + Y (W / D) + (b + c) / D)
    norm(s x + c; epsilon) = sign(s) norm(x; epsilon / s^2)

The second is a residual connection behind a BatchNormalization: the layers that add to it take up the inverse, and the
readers of the sum the scale D. In front of another norm than BatchNormalization s and c must be single numbers for each
row that is normalised; of a norm without a mean c must be 0.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from export.compiler.analyses.affine import DEFAULT_EPSILON, axis_of, batch_norm
from export.compiler.analyses.fold_upstream import fold_upstream
from export.compiler.analyses.linear_layer_changes import (
    Change,
    by_feature,
    expect_channels,
    is_transposed,
    linear_weight,
    narrowed,
    old_bias,
    scaled,
    shape_of,
)
from export.compiler.errors import Refused
from export.compiler.graph.attributes import (
    attribute_float,
    attribute_int,
    axes_of,
    given,
    is_padded,
    reads_shape_alone,
)
from export.compiler.graph.constants import Array, doubles, is_constant
from export.compiler.graph.def_use import is_read
from export.compiler.graph.symbolic_shapes import Shapes, same_shape
from export.compiler.operators.table import NORMALISING, VIEWS, view_of

POOLS = ("AveragePool", "GlobalAveragePool")
FLOAT32 = np.finfo(np.float32)
SMALLEST = 1e-12  # of a scale that is divided out


def fold_downstream(shapes: Shapes, value: ir.Value, scale: Array, shift: Array) -> list[Change]:
    """The changes after which all readers of `value` = scale * root + shift may read its root.

    `scale` and `shift` have the value's rank. Views and means between value and layers pass the map on. Raises Refused
    if a reader is no linear layer or norm, or if the graph's user reads the value.
    """
    if value.is_graph_output():
        raise Refused(value.name or "", "graph output", "is read by the graph's user")
    uses = [use for use in value.uses() if not reads_shape_alone(use.node)]
    changes: list[Change] = []
    for use in uses:
        if use.node.op_type == "Add" and len(uses) > 1:  # else the layers before the value take up the map
            changes += _past_sum(shapes, use.node, use.idx, scale, shift)
            continue
        if use.idx or use.node.domain:
            raise Refused(value.name or "", use.node.op_type, "reads it as more than its first input")
        changes += _into(shapes, use.node, value, scale, shift)
    if not changes:
        raise Refused(value.name or "", "", "no linear layer reads it")
    if len({change.node for change in changes}) < len(changes):
        raise Refused(value.name or "", "", "a layer would change twice")
    return changes


def _into(shapes: Shapes, node: ir.Node, value: ir.Value, scale: Array, shift: Array) -> Iterable[Change]:
    axis, rank = axis_of(scale, shift), shapes.rank(value)
    weight = linear_weight(node)
    if weight is not None:
        expect_channels(node, axis, rank - 1 if node.op_type == "MatMul" else 1)
        return (
            [_into_conv(shapes, node, weight, scale, shift)]
            if node.op_type == "Conv"
            else [_into_matrix(node, weight, scale, shift)]
        )
    if node.op_type == "BatchNormalization":
        expect_channels(node, axis, 1)
        return [_into_batch_norm(node, scale, shift)]
    if node.op_type in NORMALISING:
        return [_into_norm(node, rank, narrowed(scale), narrowed(shift))]
    if node.op_type in ("ReduceMean", *POOLS):
        return _through_mean(shapes, node, rank, axis, scale, shift)
    if node.op_type in VIEWS:
        return _through_view(shapes, node, scale, shift)
    raise Refused(value.name or "", node.op_type, "reads it and is no linear layer")


def _through_view(shapes: Shapes, node: ir.Node, scale: Array, shift: Array) -> Iterable[Change]:
    """Moves the map as the view moves the value, and folds it into the readers of each output."""
    for index, output in enumerate(node.outputs):
        if is_read(output):
            view = view_of(shapes, node, index)
            if view is None:
                raise Refused.of(output, "picks channels that are not known")
            yield from fold_downstream(shapes, output, *(narrowed(view.forward(array)) for array in (scale, shift)))


def _into_matrix(node: ir.Node, weight: ir.Value, scale: Array, shift: Array) -> Change:
    transposed = is_transposed(node)
    wide_scale, wide_shift = by_feature(shape_of(weight)[1 if transposed else 0], scale, shift)
    bias = old_bias(node) if node.op_type == "Gemm" else np.zeros(1)
    if shift.any():
        bias = bias + (doubles(weight) @ wide_shift if transposed else wide_shift @ doubles(weight))
    return scaled(node, weight, wide_scale if transposed else wide_scale[:, None], bias)


def _into_conv(shapes: Shapes, node: ir.Node, value: ir.Value, scale: Array, shift: Array) -> Change:
    if shift.any() and is_padded(node):
        raise Refused.at(node, "is padded: the padding would need the shift, too")
    weight, count = doubles(value), attribute_int(node, "group", 1)
    channels, ones = weight.shape[1] * count, [1] * (weight.ndim - 2)
    grouped = weight.reshape(count, -1, *weight.shape[1:])
    wide_scale, wide_shift = (array.reshape(count, 1, -1, *ones) for array in by_feature(channels, scale, shift))
    bias = old_bias(node) + (grouped * wide_shift).reshape(weight.shape[0], -1).sum(1)
    scaled_weight = (grouped * wide_scale).reshape(weight.shape)
    return Change(node, lambda: scaled_weight, weight.shape, bias)


def _past_sum(shapes: Shapes, node: ir.Node, position: int, scale: Array, shift: Array) -> Iterable[Change]:
    """Into the layers that make the other term of a sum, divided by the scale, and into the readers of the sum."""
    term, total, least = given(node, 1 - position), node.outputs[0], np.abs(scale).min()
    if not all(same_shape(shapes.dims(given(node, k)), shapes.dims(total)) for k in (0, 1)):
        raise Refused.at(node, "adds what is not of the sum's shape")
    if not SMALLEST < least <= np.abs(scale).max() < 1 / SMALLEST:
        raise Refused.at(node, f"would be divided by a scale of {least:g}")
    yield from fold_upstream(shapes, term, 1 / scale, shift / scale, {node})
    yield from fold_downstream(shapes, total, scale, np.zeros_like(shift))


def _into_batch_norm(node: ir.Node, scale: Array, shift: Array) -> Change:
    form = batch_norm(node)
    if form is None:
        raise Refused.at(node, "expected constants, and a variance over 0")
    steepness, offset = form
    wide_scale, wide_shift = by_feature(steepness.size, scale, shift)
    beta = offset + steepness * (wide_scale * doubles(given(node, 3)) + wide_shift)
    return scaled(node, given(node, 1), wide_scale, beta)


def _into_norm(node: ir.Node, rank: int, scale: Array, shift: Array) -> Change:
    gamma, subtracts_mean = given(node, 1), node.op_type == "LayerNormalization"
    first = attribute_int(node, "axis", -1) % rank
    if not is_constant(gamma) or any(map(is_read, node.outputs[1:])):
        raise Refused.at(node, "expected a constant scale, and readers of its first output alone")
    if scale.size > 1 or any(size > 1 for size in shift.shape[first:]) or not (subtracts_mean or not shift.any()):
        raise Refused.at(node, "normalises what is not scaled and shifted alike")
    epsilon, square = attribute_float(node, "epsilon", DEFAULT_EPSILON), float(scale.reshape(-1)[0]) ** 2
    if not FLOAT32.tiny * square <= epsilon <= FLOAT32.max * square or not square:
        raise Refused.at(node, f"divides by no float32 for an epsilon of {epsilon:g} and a scale of {scale.max():g}")
    return replace(scaled(node, gamma, np.sign(scale.reshape(-1)), np.zeros(1)), epsilon=epsilon / square)


def _through_mean(
    shapes: Shapes, node: ir.Node, rank: int, axis: int | None, scale: Array, shift: Array
) -> Iterable[Change]:
    """A mean of scale * x + shift is scale * mean(x) + shift, unless it reduces the axis along which the map varies."""
    is_pool = node.op_type in POOLS
    if attribute_int(node, "count_include_pad", 0) and (is_padded(node) or attribute_int(node, "ceil_mode", 0)):
        raise Refused.at(node, "is padded: the padding would need the shift, too")
    axes = list(range(2, rank)) if is_pool else axes_of(node)
    reduced = {mean_axis % rank for mean_axis in axes or range(rank)}
    if axis in reduced:
        raise Refused.at(node, "is a mean over the channels")
    if is_pool or attribute_int(node, "keepdims", 1):
        return fold_downstream(shapes, node.outputs[0], scale, shift)
    squeezed = (np.squeeze(array, tuple(reduced)) for array in (scale, shift))
    return fold_downstream(shapes, node.outputs[0], *squeezed)
