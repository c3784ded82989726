"""Whether an axis may be empty in a run that answers: over no token the weights of a softmax sum to 0, not to 1.

In: a graph with shapes, and a size or weights. Out: yes or no.
"""

from __future__ import annotations

import onnx_ir as ir

from export.compiler.analyses.chosen_rows import choices
from export.compiler.graph.attributes import attribute_int
from export.compiler.graph.constants import integers
from export.compiler.graph.shapes import Dim, Shapes, same


def may_be_empty(shapes: Shapes, size: Dim) -> bool:
    """False where a token always stands beside those of the input, and where the graph takes a row that must be there:
    ONNX Runtime refuses such inputs.
    """
    if isinstance(size, int):
        return size == 0
    try:
        least = size.evaluate(dict.fromkeys(size.free_symbols(), 0))
    except ValueError:  # a function that onnx_ir does not read
        least = None
    if isinstance(least, int) and least > 0:
        return False
    taken = (shapes.dims(choice.whole)[1] for choice in choices(shapes))
    return not any(same(size, dim) for dim in taken) and not any(_takes(shapes, node, size) for node in shapes.graph)


def may_sum_to_zero(shapes: Shapes, weights: ir.Value) -> bool:
    """Whether rows of a softmax over the last axis may be there without an element."""
    *others, last = shapes.dims(weights)
    return not any(same(last, other) for other in others) and may_be_empty(shapes, last)


def _takes(shapes: Shapes, node: ir.Node, size: Dim) -> bool:
    """Whether it takes a known row of an axis of this size."""
    source = node.inputs[0] if node.op_type == "Gather" and not node.domain else None
    if source is None or source.shape is None or not integers(node.inputs[1]):
        return False
    dims = shapes.dims(source)
    return same(dims[attribute_int(node, "axis", 0) % len(dims)], size)
