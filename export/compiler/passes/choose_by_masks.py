"""Writes a number that is put where a mask is true as a choice between the two.

In: a graph with inferred shapes. Out: the same answers. The newer exporter writes `x[mask] = number` as

    ScatterND(x, Transpose(NonZero(mask)), number as often as the mask is true) = Where(mask, number, x)

whose sizes follow from the mask's content, so that no pass could tell its axes.
"""

from __future__ import annotations

import onnx_ir as ir

from export.compiler.graph.attributes import attribute_string, permutation
from export.compiler.graph.constants import Array, Constants, constant
from export.compiler.graph.nodes import nodes_before
from export.compiler.graph.readers import made_by, made_of
from export.compiler.graph.shapes import Shapes, same_shape
from export.compiler.operators.table import RESHAPES


def choose_by_masks(graph: ir.Graph) -> bool:
    shapes, constants, changed = Shapes(graph), Constants(graph), False
    for node in list(graph):
        mask, number = _mask(shapes, node), _number(node)
        if mask is None or number is None:
            continue
        nodes, out = nodes_before(constants, node), node.outputs[0]
        rest = [*range(shapes.rank(mask), shapes.rank(out))]
        if rest:
            mask, dims = nodes.unsqueeze(mask, rest), shapes.dims(mask)
            mask.shape = ir.Shape([*dims, *[1] * len(rest)])
        fill = constants.add(number.reshape(()), "fill", out.dtype)
        chosen = nodes.add("Where", [mask, fill, node.inputs[0]], out.dtype)
        chosen.shape = out.shape
        constants.replace(out, chosen, "put")
        changed = True
    return changed


def _mask(shapes: Shapes, node: ir.Node) -> ir.Value | None:
    """Of the first axes of what is filled, or of all; each true place is filled once."""
    if made_by(node.outputs[0], "ScatterND") is None or attribute_string(node, "reduction", "none") != "none":
        return None
    turned, filled = made_by(node.inputs[1], "Transpose"), node.inputs[0]
    mask = made_of(turned.inputs[0], "NonZero") if turned is not None and permutation(turned, 2) == [1, 0] else None
    if mask is None or filled is None or mask.dtype != ir.DataType.BOOL or None in (mask.shape, filled.shape):
        return None
    dims = shapes.dims(mask)
    return mask if dims and same_shape(dims, shapes.dims(filled)[: len(dims)]) else None


def _number(node: ir.Node) -> Array | None:
    """Of a ScatterND that puts a single number."""
    value, spread = node.inputs[2] if len(node.inputs) == 3 else None, False
    while (source := made_of(value, "Expand", *RESHAPES)) is not None:
        spread |= made_by(value, "Expand") is not None
        value = source
    array = constant(value)
    return array if spread and array is not None and array.size == 1 else None
