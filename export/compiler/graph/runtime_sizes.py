"""Makes nodes that compute free sizes when the graph runs, from the shapes of its inputs.

In: sizes as numbers and expressions. Out: a value, INT64 [number of sizes]; or NotSupported. For a Reshape or an Expand
of which only some rows are computed: its new shape, or the new node.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx_ir as ir

from export.compiler.errors import NotSupported
from export.compiler.graph.node_builder import Nodes
from export.compiler.graph.symbolic_shapes import Dim, Shapes, same, times


class Sizes:
    def __init__(self, shapes: Shapes, nodes: Nodes) -> None:
        self._shapes, self._nodes = shapes, nodes
        self._sizes: dict[tuple[ir.Value, int], ir.Value] = {}  # by input and axis, so that nodes are made once

    def vector(self, sizes: Sequence[Dim]) -> ir.Value:
        """The sizes as a vector. Raises NotSupported for a size that does not follow from an axis of an input."""
        return self._nodes.vector([size if isinstance(size, int) else self._size(size) for size in sizes])

    def resized(self, node: ir.Node, source: ir.Value, counts: Mapping[int, Dim]) -> ir.Value:
        """What the Reshape or Expand `node` makes of these rows of its `source`: `counts` rows of some axes.

        Raises NotSupported as `vector`.
        """
        operator = "Expand" if node.op_type == "Expand" else "Reshape"
        return self._nodes.add(operator, [source, self.vector(shape_plan(self._shapes, node, counts) or [])])

    def _size(self, size: Dim) -> ir.Value:
        """A free size as a vector of length 1."""
        source = self._shapes.source(size)
        if source is None:
            return self._product(size)
        if source not in self._sizes:
            self._sizes[source] = self._nodes.sizes(source[0], [source[1]])
        return self._sizes[source]

    def _product(self, size: Dim) -> ir.Value:
        """A size that is the size of an input's axis times a number, as a vector of length 1."""
        for unit in (dim for value in self._shapes.graph.inputs for dim in self._shapes.dims(value)):
            if (factor := times(size, unit)) is not None:
                return self._nodes.add("Mul", [self._size(unit), self._nodes.integers([factor])])
        raise NotSupported(f"shapes: expected the size of an input's axis, or some of them, found {size}")


def shape_plan(shapes: Shapes, node: ir.Node, chosen: Mapping[int, Dim]) -> list[Dim] | None:
    """The target shape of a Reshape or an Expand that computes only `chosen` numbers of rows of some axes.

    A Reshape gets -1 for a single free size. Of several, the sizes that no input of the graph has get 0 along the first
    axes if the source has the same axes there, and one other gets -1; ONNX Runtime fails on a -1 beside a size of 0. An
    Expand gets 1 for axes that it does not repeat. None if no target shape can be written.
    """
    dims = shapes.dims(node.outputs[0])
    if node.op_type == "Expand":
        return _expand_plan(shapes, node, dims, chosen)
    sizes = [chosen.get(axis, dim) for axis, dim in enumerate(dims)]
    free = [position for position, dim in enumerate(sizes) if not isinstance(dim, int)]
    unknown = [position for position in free if shapes.source(sizes[position]) is None]
    if len(free) > 1:
        copied = _same_first_axes(shapes, node, dims)
        for position in (position for position in unknown if position < copied):
            sizes[position] = 0
        unknown = [position for position in unknown if position >= copied]
    if len(unknown) > 1:
        return None
    if len(free) == 1 or unknown:
        sizes[(unknown or free)[0]] = -1
    return sizes


def _same_first_axes(shapes: Shapes, node: ir.Node, dims: Sequence[Dim]) -> int:
    """How many first axes of these sizes are those of the node's input: the Reshape leaves them."""
    source = node.inputs[0].shape if node.inputs[0] is not None else None
    pairs = zip(dims, source or (), strict=False)
    return next((axis for axis, pair in enumerate(pairs) if not same(*pair)), min(len(dims), len(source or ())))


def _expand_plan(shapes: Shapes, node: ir.Node, dims: Sequence[Dim], chosen: Mapping[int, Dim]) -> list[Dim] | None:
    source = shapes.dims(node.inputs[0]) if node.inputs[0] is not None else ()
    aligned = [1] * (len(dims) - len(source)) + [*source]
    is_repeated = [not same(before, after) for before, after in zip(aligned, dims, strict=True)]
    sizes = [chosen.get(axis, dim) if is_repeated[axis] else 1 for axis, dim in enumerate(dims)]
    return sizes if all(map(shapes.is_known, sizes)) else None
