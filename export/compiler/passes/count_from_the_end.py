"""Counts the last row of an axis from its end, as the passes read numbers alone.

In: a graph with inferred shapes. Out: the same outputs; of an axis of n rows

    Gather(x, n - 1) = Gather(x, -1)    Slice(x, n - 1, ...) = Slice(x, -1, ...)
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from export.compiler.graph.attributes import attribute_int, optional
from export.compiler.graph.constants import Constants, integers, is_constant
from export.compiler.graph.symbolic_shapes import Shapes, more
from export.compiler.operators.shape_inference import elements_of


def count_from_the_end(graph: ir.Graph) -> None:
    """In place. Elements of a matrix of indices, and axes of a Slice that are computed, stay."""
    shapes, constants = Shapes(graph), Constants(graph)
    for node in graph:
        source, positions = optional(node, 0), optional(node, 1)
        if node.domain or node.op_type not in ("Gather", "Slice") or source is None or positions is None:
            continue
        elements = elements_of(positions)
        if not elements or is_constant(positions) or source.shape is None or positions.shape is None:
            continue
        if node.op_type == "Gather":
            axes = [attribute_int(node, "axis", 0)] * len(elements)
        else:
            axes = [*range(len(elements))] if optional(node, 3) is None else integers(optional(node, 3)) or []
        if len(axes) != len(elements):  # a Slice of computed axes
            continue
        sizes = [shapes.dims(source)[axis] for axis in axes]
        numbers = [-1 if more(size, element) == 1 else element for element, size in zip(elements, sizes, strict=True)]
        if all(isinstance(number, int) for number in numbers) and len(positions.shape) < 2:
            array = np.array(numbers if len(positions.shape) else numbers[0])
            node.replace_input_with(1, constants.add(array, "from_end", positions.dtype))
