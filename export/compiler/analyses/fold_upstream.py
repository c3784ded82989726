"""Folds an affine map of a value into the linear layers that compute the value.

In: a value, and scale and shift along its axes. Out: a `Change` of weights for each layer; Refused if no linear layer
computes the value, or if another node reads it, too:

    D (x W + b) + c = x (W D) + (D b + c)            s (X Y) = (s X) Y

If a Split, Slice or Gather takes the value from a layer's output, only these channels of the layer change. All other
readers of the layer must read other channels.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from export.compiler.analyses.affine import axis_of, constant_term
from export.compiler.analyses.linear_layer_changes import (
    Change,
    by_feature,
    by_output,
    expect_channels,
    linear_weight,
    narrowed,
    old_bias,
    outputs_of,
    scaled,
    shape_of,
)
from export.compiler.errors import Refused
from export.compiler.graph.attributes import given, optional
from export.compiler.graph.constants import Array, is_constant
from export.compiler.graph.def_use import other_readers, readers
from export.compiler.graph.symbolic_shapes import Shapes
from export.compiler.operators.table import SELECTING, view_of
from export.compiler.operators.view import Places, View


def fold_upstream(shapes: Shapes, value: ir.Value, scale: Array, shift: Array, allowed: set[ir.Node]) -> list[Change]:
    """The changes that turn `value` into scale * value + shift.

    Raises Refused if a node that is not in `allowed` reads the value, and if no linear layer makes it.
    """
    node = value.producer()
    if other_readers(value, allowed):
        raise Refused.of(value, "is read elsewhere, too")
    if node is None or node.domain:
        raise Refused(value.name or "", "graph input", "is no linear layer")
    axis, rank = axis_of(scale, shift), shapes.rank(value)
    weight = optional(node, 1) if node.op_type == "ConvTranspose" else linear_weight(node)
    if weight is not None:
        if not is_constant(weight):
            raise Refused.at(node, "expected a constant weight")
        expect_channels(node, axis, rank - 1 if node.op_type == "MatMul" else 1)
        shape = shape_of(weight)
        wide_scale, wide_shift = by_feature(outputs_of(node, shape), scale, shift)
        bias = old_bias(node) * wide_scale + wide_shift
        return [scaled(node, weight, by_output(node, shape, wide_scale), bias)]
    if node.op_type in SELECTING:
        return _into_selected(shapes, node, value, scale, shift)
    if value.index():
        raise Refused.of(value, "is no linear layer")
    if node.op_type == "MatMul" and scale.size == 1 and not shift.any():
        return _into_factor(shapes, node, scale)
    if node.op_type == "Add":
        return _into_bias(shapes, node, value, scale, shift)
    if (view := view_of(shapes, node)) is not None:
        scale, shift = (narrowed(view.backward(array)) for array in (scale, shift))
        return fold_upstream(shapes, given(node, 0), scale, shift, {node})
    raise Refused.of(value, "is no linear layer")


def _into_bias(shapes: Shapes, node: ir.Node, value: ir.Value, scale: Array, shift: Array) -> list[Change]:
    """scale * (x + b) + shift = scale * x + (scale * b + shift)."""
    term = constant_term(shapes, node)
    if term is None:
        raise Refused.of(value, "is no linear layer")
    total = scale * term[1] + shift
    while total.ndim > 1 and total.shape[0] == 1:  # exporters write a bias with leading axes
        total = total[0]
    return [
        Change(node, lambda: total, total.shape, np.zeros(1)),
        *fold_upstream(shapes, term[0], scale, np.zeros_like(shift), {node}),
    ]


def _into_factor(shapes: Shapes, product: ir.Node, scale: Array) -> list[Change]:
    """Scales a product of two values by scaling one factor: the first of which the layers can be scaled."""
    refused = Refused.at(product, "is no linear layer")
    for factor in product.inputs:
        if factor is None or factor is product.inputs[1 - product.inputs.index(factor)]:
            break
        number = scale.reshape((1,) * shapes.rank(factor))
        try:
            return fold_upstream(shapes, factor, number, np.zeros_like(number), {product})
        except Refused as error:
            refused = error
    raise refused


def _into_selected(shapes: Shapes, node: ir.Node, value: ir.Value, scale: Array, shift: Array) -> list[Change]:
    """Into the layer from whose output a Split, Slice or Gather takes the value.

    The layer's other channels are scaled by 1 and shifted by 0.
    """
    source = given(node, 0)
    view, axis, channels = _selected(shapes, node, value.index() or 0)
    others = [reader for reader in readers(source) if reader is not node]
    for other in others:
        if other.op_type not in SELECTING or _read_channels(shapes, other, axis) & {*channels}:
            raise Refused(value.name or "", other.op_type, "reads the same channels, too")
    return fold_upstream(shapes, source, view.backward(scale, rest=1.0), view.backward(shift), {node, *others})


def _selected(shapes: Shapes, node: ir.Node, index: int) -> tuple[View, int, Places]:
    """Of a Split, Slice or Gather: the view of output `index`, the axis that it selects from, and the places there."""
    view = view_of(shapes, node, index)
    selections = [(axis, pick.places(None)) for axis, pick in view.picks.items()] if view is not None else []
    if view is not None and len(selections) == 1 and selections[0][1] is not None:
        return view, selections[0][0], selections[0][1]
    raise Refused.of(node.outputs[index], "expected known places of one axis")


def _read_channels(shapes: Shapes, node: ir.Node, axis: int) -> set[int]:
    """The indices along `axis` that a Split, Slice or Gather reads for those of its outputs that are read."""
    selections = [_selected(shapes, node, index) for index, output in enumerate(node.outputs) if output.uses()]
    if any(selected_axis != axis for _, selected_axis, _ in selections):
        raise Refused.at(node, "picks of another axis")
    return {channel for _, _, channels in selections for channel in channels}
