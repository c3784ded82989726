"""How the linear layers before a value take up a scale and a shift of it.

In: a value, and scale and shift along its axes. Out: `Change`s, or Refused:

    D (x W + b) + c = x (W D) + (D b + c)            s (X Y) = (s X) Y

A part of a layer's outputs takes up its map where all other readers read other parts.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from export.compiler.analyses.affine import axis_of
from export.compiler.analyses.layer_changes import (
    Change,
    expect_channels,
    linear_weight,
    narrowed,
    old_bias,
    outputs_of,
    scaled,
    shape_of,
)
from export.compiler.errors import Refused
from export.compiler.graph.attributes import attribute_int, given, optional
from export.compiler.graph.constants import Array, constant, is_constant
from export.compiler.graph.def_use import readers
from export.compiler.graph.shapes import Shapes, same_shape
from export.compiler.operators.table import SELECTING, view_of
from export.compiler.operators.view import Places


def before(shapes: Shapes, value: ir.Value, scale: Array, shift: Array, inside: set[ir.Node]) -> list[Change]:
    """The changes that turn `value` into scale * value + shift; raises Refused if a node outside `inside` reads it."""
    node = value.producer()
    others = [reader for reader in readers(value) if reader not in inside]
    if others or value.is_graph_output():
        raise Refused.of(value, "is read elsewhere, too")
    if node is None or node.domain:
        raise Refused(value.name or "", "graph input", "is no linear layer")
    axis, rank = axis_of(scale, shift), shapes.rank(value)
    weight = linear_weight(node)
    if weight is not None:
        expect_channels(node, axis, rank - 1 if node.op_type == "MatMul" else 1)
        outputs = outputs_of(node, shape_of(weight))
        wide_scale, wide_shift = (np.broadcast_to(array.reshape(-1), (outputs,)) for array in (scale, shift))
        if node.op_type == "MatMul":
            return [scaled(node, weight, wide_scale, wide_shift)]
        first = node.op_type == "Conv" or bool(attribute_int(node, "transB", 0))
        along = wide_scale.reshape(-1, *[1] * (len(shape_of(weight)) - 1)) if first else wide_scale
        return [scaled(node, weight, along, old_bias(node) * wide_scale + wide_shift)]
    if node.op_type == "ConvTranspose":
        return [_transposed_before(node, axis, scale, shift)]
    if node.op_type in SELECTING:
        return _part_before(shapes, node, value, scale, shift)
    if value.index():
        raise Refused.of(value, "is no linear layer")
    if node.op_type == "MatMul" and scale.size == 1 and not shift.any():
        return _factor_before(shapes, node, scale)
    if node.op_type == "Add":
        return _bias_before(shapes, node, value, scale, shift)
    if (view := view_of(shapes, node)) is not None:
        scale, shift = (narrowed(view.backward(array)) for array in (scale, shift))
        return before(shapes, given(node, 0), scale, shift, {node})
    raise Refused.of(value, "is no linear layer")


def _transposed_before(node: ir.Node, axis: int | None, scale: Array, shift: Array) -> Change:
    """Of a weight (inputs, outputs / groups, ...) each group of inputs makes a group of outputs."""
    weight = optional(node, 1)
    if weight is None or not is_constant(weight):
        raise Refused.at(node, "expected a constant weight")
    expect_channels(node, axis, 1)
    shape, groups = shape_of(weight), attribute_int(node, "group", 1)
    outputs = outputs_of(node, shape)
    wide_scale, wide_shift = (np.broadcast_to(array.reshape(-1), (outputs,)) for array in (scale, shift))
    along = np.repeat(wide_scale.reshape(groups, -1), shape[0] // groups, axis=0)
    factor = along.reshape(*shape[:2], *[1] * (len(shape) - 2))
    return scaled(node, weight, factor, old_bias(node) * wide_scale + wide_shift)


def _bias_before(shapes: Shapes, node: ir.Node, value: ir.Value, scale: Array, shift: Array) -> list[Change]:
    """scale * (x + b) + shift = scale * x + (scale * b + shift)."""
    number = next((given for given in node.inputs if is_constant(given)), None)
    source = next((given for given in node.inputs if not is_constant(given)), None)
    bias = constant(number)
    if bias is None or source is None or not same_shape(shapes.dims(source), shapes.dims(value)):
        raise Refused.of(value, "is no linear layer")
    rank = shapes.rank(value)
    total = scale * bias.reshape((1,) * (rank - bias.ndim) + bias.shape) + shift
    while total.ndim > 1 and total.shape[0] == 1:  # exporters write a bias with leading axes
        total = total[0]
    return [
        Change(node, lambda: total, total.shape, np.zeros(1)),
        *before(shapes, source, scale, np.zeros_like(shift), {node}),
    ]


def _factor_before(shapes: Shapes, product: ir.Node, scale: Array) -> list[Change]:
    """A number scales a product by its first factor that takes it up."""
    refused = Refused.at(product, "is no linear layer")
    for factor in product.inputs:
        if factor is None or factor is product.inputs[1 - product.inputs.index(factor)]:
            break
        number = scale.reshape((1,) * shapes.rank(factor))
        try:
            return before(shapes, factor, number, np.zeros_like(number), {product})
        except Refused as error:
            refused = error
    raise refused


def _part_before(shapes: Shapes, node: ir.Node, value: ir.Value, scale: Array, shift: Array) -> list[Change]:
    """The whole takes up the map of a part: elsewhere it scales by 1 and shifts by 0."""
    source, index = given(node, 0), value.index() or 0
    view = view_of(shapes, node, index)
    if view is None:
        raise Refused.of(value, "expected known places of one axis")
    axis, places = _picked(shapes, node, index)
    others = [reader for reader in readers(source) if reader is not node]
    for other in others:
        if other.op_type not in SELECTING or _picks_of(shapes, other, axis) & {*places}:
            raise Refused(value.name or "", other.op_type, "reads the same channels, too")
    return before(shapes, source, view.backward(scale, rest=1.0), view.backward(shift), {node, *others})


def _picked(shapes: Shapes, node: ir.Node, index: int) -> tuple[int, Places]:
    """The axis that a part is cut from, and its places there."""
    view = view_of(shapes, node, index)
    picked = [(axis, pick.places(None)) for axis, pick in view.picks.items()] if view is not None else []
    if len(picked) == 1 and picked[0][1] is not None:
        return picked[0][0], picked[0][1]
    raise Refused.of(node.outputs[index], "expected known places of one axis")


def _picks_of(shapes: Shapes, node: ir.Node, axis: int) -> set[int]:
    """The places along `axis` that all outputs of a Split, Slice or Gather read."""
    picked = [_picked(shapes, node, index) for index, output in enumerate(node.outputs) if output.uses()]
    if any(own != axis for own, _ in picked):
        raise Refused.at(node, "picks of another axis")
    return {place for _, places in picked for place in places}
