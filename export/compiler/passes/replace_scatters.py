"""Replaces ScatterND, which writes into a value in place, by Where or Gather.

In: a graph with inferred shapes. Out: the same outputs. torch's newer exporter writes `x[mask] = number` as the first
form; TorchScript's writes `x[..., features] = y` with known features as the second:

    ScatterND(x, Transpose(NonZero(mask)), number, repeated)   = Where(mask, number, x)
    ScatterND(x, [i, j, ..., feature] for every i, j, ..., y)  = Gather(Concat(x, y), features)

Other passes cannot tell to which token a row of indices belongs; in the first form even their number depends on the
mask's elements. Refuses nothing by name: any other ScatterND stays.
"""

from __future__ import annotations

import onnx_ir as ir

from export.compiler.analyses.runtime_gathered_rows import counts, sources_along
from export.compiler.graph.attributes import attribute_int, attribute_string, given, permutation
from export.compiler.graph.constants import Array, Constants, constant, integers
from export.compiler.graph.def_use import made_by, made_of
from export.compiler.graph.node_builder import Nodes, nodes_before
from export.compiler.graph.symbolic_shapes import Shapes, same_shape
from export.compiler.operators.table import RESHAPES


def replace_scatters(graph: ir.Graph) -> None:
    """In place; the ScatterND stay in the graph, and nothing reads them."""
    shapes, constants = Shapes(graph), Constants(graph)
    for node in list(graph):
        out = node.outputs[0]
        if made_by(out, "ScatterND") is None or attribute_string(node, "reduction", "none") != "none":
            continue
        nodes = nodes_before(constants, node)
        result = _where(shapes, nodes, node) or _gather(shapes, nodes, node)
        if result is not None:
            constants.replace(out, result, "put")


def _where(shapes: Shapes, nodes: Nodes, node: ir.Node) -> ir.Value | None:
    """The first form; None for other nodes."""
    mask, number, out = _mask(shapes, node), _number(node), node.outputs[0]
    if mask is None or number is None:
        return None
    if missing_axes := [*range(shapes.rank(mask), shapes.rank(out))]:
        mask, dims = nodes.unsqueeze(mask, missing_axes), shapes.dims(mask)
        mask.shape = ir.Shape([*dims, *[1] * len(missing_axes)])
    fill = nodes.constants.add(number.reshape(()), "fill", out.dtype)
    return nodes.add("Where", [mask, fill, given(node, 0)])


def _mask(shapes: Shapes, node: ir.Node) -> ir.Value | None:
    """The mask, of x's first axes or of all, whose true positions are the indices of the ScatterND; else None."""
    turned = made_by(node.inputs[1], "Transpose")
    mask = made_of(turned.inputs[0], "NonZero") if turned is not None and permutation(turned, 2) == [1, 0] else None
    if mask is None or mask.dtype != ir.DataType.BOOL or None in (mask.shape, given(node, 0).shape):
        return None
    dims = shapes.dims(mask)
    return mask if dims and same_shape(dims, shapes.dims(given(node, 0))[: len(dims)]) else None


def _number(node: ir.Node) -> Array | None:
    """The constant of one element that an Expand repeats for the ScatterND; else None."""
    value, is_repeated = node.inputs[2] if len(node.inputs) == 3 else None, False
    while (source := made_of(value, "Expand", *RESHAPES)) is not None:
        is_repeated |= made_by(value, "Expand") is not None
        value = source
    array = constant(value)
    return array if is_repeated and array is not None and array.size == 1 else None


def _gather(shapes: Shapes, nodes: Nodes, node: ir.Node) -> ir.Value | None:
    """The second form; None for other nodes."""
    value, update = given(node, 0), given(node, 2)
    features, size, axis = _features(shapes, node), shapes.dims(value)[-1], shapes.rank(value) - 1
    if features is None or not isinstance(size, int):
        return None
    both = nodes.add("Concat", [value, update], axis=axis)
    both.shape = ir.Shape([*shapes.dims(value)[:-1], size + len(features)])
    sources = [size + features.index(k) if k in features else k for k in range(size)]
    return nodes.gather(both, nodes.integers(sources), axis)


def _features(shapes: Shapes, node: ir.Node) -> list[int] | None:
    """The indices of the last axis that the ScatterND writes for every index of the other axes; else None.

    A Concat makes the indices of a column for every axis of x.
    """
    concat = made_by(node.inputs[1], "Concat")
    columns = [value for value in concat.inputs if value is not None] if concat is not None else []
    if concat is None or any(value is None or value.shape is None for value in (*node.inputs, *columns)):
        return None
    *others, size = dims = shapes.dims(given(node, 0))
    has_all_columns = attribute_int(concat, "axis", 0) % (len(dims) + 1) == len(dims) == len(columns)
    if not has_all_columns or any(
        shapes.dims(column)[-1:] != (1,) or shapes.rank(column) != len(dims) + 1 for column in columns
    ):
        return None
    if not all(counts(shapes, column, axis, dims[axis]) for axis, column in enumerate(columns[:-1])):
        return None
    *_, (indices, _) = sources_along(shapes, columns[-1], len(others))
    last_column = integers(indices)
    if last_column is None or not isinstance(size, int):
        return None
    features = [index % size for index in last_column]
    are_distinct = len({*features}) == len(features)
    return features if are_distinct and same_shape(shapes.dims(given(node, 2)), (*others, len(features))) else None
