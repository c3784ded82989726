"""Values, or parts of them, that all images share, such as a class token.

In: a graph with shapes. Out: their numbers.
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


def alike(shapes: Shapes, value: ir.Value | None, wanted: Box = WHOLE) -> Array | None:
    """The part `wanted` of a value, with a first axis of size 1; None if it differs between images."""
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
    parts = [
        (given, demand.inputs[k]) for k, given in enumerate(node.inputs) if given is not None and k in demand.inputs
    ]
    dims = [len(dict(wanted).get(axis, ())) or dim for axis, dim in enumerate(shapes.dims(value))]
    if _each_image_alone(node, len(dims)):
        array = _computed(shapes, node, parts)
    elif (
        node.op_type in ("Expand", "Slice")
        or (node.op_type == "Gather" and indices_of(shapes, node) is not None)
        or (node.op_type == "Concat" and len(parts) == 1)
    ):
        array = alike(shapes, *parts[0])
    if array is None:
        return None
    if node.op_type == "Gather" and len(dims) < array.ndim:
        array = np.squeeze(array, attribute_int(node, "axis", 0))
    array = array.reshape((1,) * (len(dims) - array.ndim) + array.shape)
    return array if array.shape[0] == 1 and all(map(same, array.shape[1:], dims[1:])) else None


def _each_image_alone(node: ir.Node, rank: int) -> bool:
    """Whether it computes each element by itself, or normalises axes behind the first."""
    norm = node.op_type in NORMALISING and attribute_int(node, "axis", -1) % rank > 0
    return norm or node.op_type in ELEMENTWISE | BROADCASTING


def _computed(shapes: Shapes, node: ir.Node, parts: Sequence[tuple[ir.Value, Box]]) -> Array | None:
    values: dict[ir.Value, Array] = {}
    for given, part in parts:
        known = alike(shapes, given, part)
        if known is None:
            return None
        values[given] = known
    try:
        return evaluate_node(node, values)[node.outputs[0]]
    except UnknownOperator:
        return None
