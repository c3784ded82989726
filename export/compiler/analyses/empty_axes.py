"""Tells whether an axis may have no element in a call that the graph answers.

In: a graph with shapes, and a size or the weights of an attention. Out: yes or no. A softmax over no token has weights
that sum to 0, not to 1: rewrites that rely on a sum of 1 must ask here.
"""

from __future__ import annotations

import onnx_ir as ir

from export.compiler.analyses.runtime_gathered_rows import choices
from export.compiler.graph.attributes import attribute_int
from export.compiler.graph.constants import integers
from export.compiler.graph.symbolic_shapes import Dim, Shapes, least, same


def may_be_empty(shapes: Shapes, size: Dim) -> bool:
    """Whether an axis of this size may be empty.

    It cannot be where the size has a minimum, as N + 1 with a class token. Nor can it be where the graph gathers a row
    of such an axis: ONNX Runtime refuses that call.
    """
    if isinstance(size, int):
        return size == 0
    if least(size) > 0:
        return False
    gathered = any(same(size, shapes.dims(choice.whole)[1]) for choice in choices(shapes))
    return not gathered and not any(_gathers_row(shapes, node, size) for node in shapes.graph)


def may_sum_to_zero(shapes: Shapes, weights: ir.Value) -> bool:
    """Whether a softmax over the last axis may give rows without an element."""
    *others, last = shapes.dims(weights)
    return not any(same(last, other) for other in others) and may_be_empty(shapes, last)


def _gathers_row(shapes: Shapes, node: ir.Node, size: Dim) -> bool:
    """Whether the node gathers rows with constant indices from an axis of this size."""
    source = node.inputs[0] if node.op_type == "Gather" and not node.domain else None
    if source is None or source.shape is None or not integers(node.inputs[1]):
        return False
    dims = shapes.dims(source)
    return same(dims[attribute_int(node, "axis", 0) % len(dims)], size)
