"""Makes nodes that tell sizes when the graph runs.

In: sizes, known or free. Out: values of integers, read from the graph's inputs; or NotSupported.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from export.compiler.errors import NotSupported
from export.compiler.graph.node_builder import Nodes
from export.compiler.graph.shapes import Dim, Shapes


class Sizes:
    def __init__(self, shapes: Shapes, nodes: Nodes) -> None:
        self._shapes, self._nodes = shapes, nodes
        self._read: dict[tuple[ir.Value, int], ir.Value] = {}

    def vector(self, sizes: Sequence[Dim]) -> ir.Value:
        return self._nodes.vector([size if isinstance(size, int) else self._size(size) for size in sizes])

    def _size(self, size: Dim) -> ir.Value:
        """As a vector of length 1."""
        source = self._shapes.source(size)
        if source is None:
            return self._product(size)
        if source not in self._read:
            self._read[source] = self._nodes.sizes(source[0], [source[1]])
        return self._read[source]

    def _product(self, size: Dim) -> ir.Value:
        """Of an input's axis and a number."""
        for unit in (dim for value in self._shapes.graph.inputs for dim in self._shapes.dims(value)):
            if (each := self._shapes.times(size, unit)) is not None:
                return self._nodes.add("Mul", [self._size(unit), self._nodes.integers([each])])
        raise NotSupported(f"shapes: expected the size of an input's axis, or some of them, found {size}")
