"""Writes what is put into a value in place as a choice between both.

In: a graph with inferred shapes. Out: the same answers. The newer exporter writes `x[mask] = number`, and TorchScript
`x[..., features] = y` of known features, as

    ScatterND(x, Transpose(NonZero(mask)), number as often as the mask is true) = Where(mask, number, x)
    ScatterND(x, [i, j, ..., feature], y) of every i, j, ...                    = Gather(Concat(x, y), features)

The sizes of the first follow from the mask's content. A ScatterND does not tell the passes which token a place is of.
"""

from __future__ import annotations

import onnx_ir as ir

from export.compiler.analyses.chosen_rows import counts, source_along
from export.compiler.graph.attributes import attribute_int, attribute_string, given, permutation
from export.compiler.graph.constants import Array, Constants, constant, integers
from export.compiler.graph.def_use import made_by, made_of
from export.compiler.graph.node_builder import Nodes, nodes_before
from export.compiler.graph.shapes import Shapes, same_shape
from export.compiler.operators.table import RESHAPES


def replace_scatters(graph: ir.Graph) -> None:
    shapes, constants = Shapes(graph), Constants(graph)
    for node in list(graph):
        out = node.outputs[0]
        if made_by(out, "ScatterND") is None or attribute_string(node, "reduction", "none") != "none":
            continue
        nodes = nodes_before(constants, node)
        chosen = _by_mask(shapes, nodes, node) or _by_features(shapes, nodes, node)
        if chosen is not None:
            chosen.shape = out.shape
            constants.replace(out, chosen, "put")


def _by_mask(shapes: Shapes, nodes: Nodes, node: ir.Node) -> ir.Value | None:
    mask, number, out = _mask(shapes, node), _number(node), node.outputs[0]
    if mask is None or number is None:
        return None
    if rest := [*range(shapes.rank(mask), shapes.rank(out))]:
        mask, dims = nodes.unsqueeze(mask, rest), shapes.dims(mask)
        mask.shape = ir.Shape([*dims, *[1] * len(rest)])
    fill = nodes.constants.add(number.reshape(()), "fill", out.dtype)
    return nodes.add("Where", [mask, fill, given(node, 0)], out.dtype)


def _mask(shapes: Shapes, node: ir.Node) -> ir.Value | None:
    """Of the first axes of what is filled, or of all; each true place is filled once."""
    turned = made_by(node.inputs[1], "Transpose")
    mask = made_of(turned.inputs[0], "NonZero") if turned is not None and permutation(turned, 2) == [1, 0] else None
    if mask is None or mask.dtype != ir.DataType.BOOL or None in (mask.shape, given(node, 0).shape):
        return None
    dims = shapes.dims(mask)
    return mask if dims and same_shape(dims, shapes.dims(given(node, 0))[: len(dims)]) else None


def _number(node: ir.Node) -> Array | None:
    """Of a ScatterND that puts a single number."""
    value, spread = node.inputs[2] if len(node.inputs) == 3 else None, False
    while (source := made_of(value, "Expand", *RESHAPES)) is not None:
        spread |= made_by(value, "Expand") is not None
        value = source
    array = constant(value)
    return array if spread and array is not None and array.size == 1 else None


def _by_features(shapes: Shapes, nodes: Nodes, node: ir.Node) -> ir.Value | None:
    value, update = given(node, 0), given(node, 2)
    features, size, axis = _features(shapes, node), shapes.dims(value)[-1], shapes.rank(value) - 1
    if features is None or not isinstance(size, int):
        return None
    both = nodes.add("Concat", [value, update], value.dtype, {"axis": axis})
    both.shape = ir.Shape([*shapes.dims(value)[:-1], size + len(features)])
    taken = [size + features.index(own) if own in features else own for own in range(size)]
    return nodes.gather(both, nodes.integers(taken), axis)


def _features(shapes: Shapes, node: ir.Node) -> list[int] | None:
    """Numbers of the last axis that the ScatterND puts, one each, at every place of the other axes."""
    places = made_by(node.inputs[1], "Concat")
    columns = [value for value in places.inputs if value is not None] if places is not None else []
    if places is None or any(value is None or value.shape is None for value in (*node.inputs, *columns)):
        return None
    *others, size = dims = shapes.dims(given(node, 0))
    joined = attribute_int(places, "axis", 0) % (len(dims) + 1) == len(dims) == len(columns)
    if not joined or any(
        shapes.dims(column)[-1:] != (1,) or shapes.rank(column) != len(dims) + 1 for column in columns
    ):
        return None
    if not all(counts(shapes, column, axis, dims[axis]) for axis, column in enumerate(columns[:-1])):
        return None
    found = integers(source_along(shapes, columns[-1], len(others))[0])
    if found is None or not isinstance(size, int):
        return None
    features = [own % size for own in found]
    once = len({*features}) == len(features)
    return features if once and same_shape(shapes.dims(given(node, 2)), (*others, len(features))) else None
