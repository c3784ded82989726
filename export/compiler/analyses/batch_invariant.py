"""Computes values that are the same for every image of a batch, such as a class token after its LayerNorm.

In: a graph with shapes and one of its values. Out: the value's numbers, or None if images may differ. Of a Concat that
adds such values to others: a `Padding`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from export.compiler.graph.attributes import attribute_int
from export.compiler.graph.constants import Array, constant
from export.compiler.graph.symbolic_shapes import Shapes, same
from export.compiler.operators.boxes import WHOLE, Box
from export.compiler.operators.data_movement import indices_of
from export.compiler.operators.evaluate import UnknownOperator, evaluate_node
from export.compiler.operators.table import BROADCASTING, ELEMENTWISE, NORMALISING, demand_of


def batch_invariant(shapes: Shapes, value: ir.Value | None, wanted: Box = WHOLE) -> Array | None:
    """The part `wanted` of a value, in float64, with a first axis of size 1; None if images may differ in it."""
    array: Array | None = constant(value)
    if array is not None:
        for axis, indices in wanted:
            array = np.take(array, indices, axis=axis)
        return array
    node = value.producer() if value is not None else None
    if value is None or node is None or node.domain or value.shape is None or value.index():
        return None
    demand = demand_of(shapes, node, 0, wanted)
    if demand.produced != wanted:
        return None
    inputs = [
        (operand, demand.inputs[k])
        for k, operand in enumerate(node.inputs)
        if operand is not None and k in demand.inputs
    ]
    dims = [len(dict(wanted).get(axis, ())) or dim for axis, dim in enumerate(shapes.dims(value))]
    if _keeps_images_apart(node, len(dims)):
        array = _evaluated(shapes, node, inputs)
    elif (
        node.op_type in ("Expand", "Slice")
        or (node.op_type == "Gather" and indices_of(shapes, node) is not None)
        or (node.op_type == "Concat" and len(inputs) == 1)
    ):
        array = batch_invariant(shapes, *inputs[0])
    if array is None:
        return None
    if node.op_type == "Gather" and len(dims) < array.ndim:
        array = np.squeeze(array, attribute_int(node, "axis", 0))
    array = array.reshape((1,) * (len(dims) - array.ndim) + array.shape)
    return array if array.shape[0] == 1 and all(map(same, array.shape[1:], dims[1:])) else None


class Padding(NamedTuple):
    """pad(value) + table: zeros for `before` and `after` rows of the axis, where the float64 `table` holds numbers.

    The table's first axis has size 1.
    """

    value: ir.Value
    axis: int
    before: int
    after: int
    table: Array


def concat_as_padding(shapes: Shapes, concat: ir.Node) -> Padding | None:
    """Reads [t; x] as pad(x) + [t; 0] for parts t that all images share.

    None unless images differ in a single part, and the sizes of all parts are known.
    """
    axis = attribute_int(concat, "axis", 0) % shapes.rank(concat.outputs[0])
    parts = [(value, batch_invariant(shapes, value)) for value in concat.inputs if value is not None]
    computed = [position for position, (_, array) in enumerate(parts) if array is None]
    sizes = [size for value, _ in parts if (size := shapes.static(value, axis)) is not None]
    if len(computed) != 1 or len(sizes) < max(len(parts), 2) or axis == 0:
        return None
    (position,) = computed
    shape = [*next(array.shape for _, array in parts if array is not None)]
    shape[axis] = sizes[position]
    table = np.concatenate([np.zeros(shape) if array is None else array for _, array in parts], axis)
    return Padding(parts[position][0], axis, sum(sizes[:position]), sum(sizes[position + 1 :]), table)


def _keeps_images_apart(node: ir.Node, rank: int) -> bool:
    """Whether an image's output depends on that image alone: elementwise operators, and norms over later axes."""
    norm = node.op_type in NORMALISING and attribute_int(node, "axis", -1) % rank > 0
    return norm or node.op_type in ELEMENTWISE | BROADCASTING


def _evaluated(shapes: Shapes, node: ir.Node, inputs: Sequence[tuple[ir.Value, Box]]) -> Array | None:
    """The node's output for these parts of its inputs; None if an input differs between images."""
    arrays: dict[ir.Value, Array] = {}
    for operand, part in inputs:
        array = batch_invariant(shapes, operand, part)
        if array is None:
            return None
        arrays[operand] = array
    try:
        return evaluate_node(node, arrays)[node.outputs[0]]
    except UnknownOperator:
        return None
