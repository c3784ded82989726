"""Computes values that are the same for every image of a batch, such as a class token after its LayerNorm.

In: a graph with shapes and one of its values. Out: the value's numbers, or None if images may differ.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from export.compiler.graph.attributes import attribute_int
from export.compiler.graph.constants import Array, constant
from export.compiler.graph.shapes import Shapes, same
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
