"""Makes nodes that compute free sizes when the graph runs, from the shapes of its inputs.

In: sizes as numbers and expressions. Out: a value, INT64 [number of sizes]; or NotSupported.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from export.compiler.errors import NotSupported
from export.compiler.graph.node_builder import Nodes
from export.compiler.graph.shapes import Dim, Shapes, times


class Sizes:
    def __init__(self, shapes: Shapes, nodes: Nodes) -> None:
        self._shapes, self._nodes = shapes, nodes
        self._sizes: dict[tuple[ir.Value, int], ir.Value] = {}  # by input and axis, so that nodes are made once

    def vector(self, sizes: Sequence[Dim]) -> ir.Value:
        """The sizes as a vector. Raises NotSupported for a size that does not follow from an axis of an input."""
        return self._nodes.vector([size if isinstance(size, int) else self._size(size) for size in sizes])

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
