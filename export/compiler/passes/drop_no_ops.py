"""Drops operators that return their input as it is: no pass looks through them.

In: a graph with inferred shapes. Out: the same graph, in which the readers of such an operator read its input:

    x + 0    x - 0    x * 1    x / 1    x ** 1    Sum(x)    Slice of the entire axis    Pad by 0    Expand to x's shape

Reads constants, attributes and shapes. An operator stays if a shape is unknown, or if its output is the graph's.
"""

from __future__ import annotations

import onnx_ir as ir

from export.compiler.graph.attributes import optional, permutation
from export.compiler.graph.constants import integers, number
from export.compiler.graph.def_use import made_by
from export.compiler.graph.symbolic_shapes import Shapes, same_shape


def drop_no_ops(graph: ir.Graph) -> None:
    """In place; the operators stay in the graph, and nothing reads them."""
    shapes = Shapes(graph)
    for node in list(graph):
        value, out = _returned(node), node.outputs[0]
        if value is None or node.domain or out.is_graph_output() or None in (value.shape, out.shape):
            continue
        if same_shape(shapes.dims(value), shapes.dims(out)):
            ir.convenience.replace_all_uses_with(out, value)


def _returned(node: ir.Node) -> ir.Value | None:
    """The input that the node returns as it is, provided that its shape is the output's; None for other nodes.

    The shape decides for parts: the Slice x[:, -n:] of n tokens is x.
    """
    value, other = (optional(node, position) for position in (0, 1))
    match node.op_type:
        case "Expand" | "Tile":  # `share_names` repeats inputs that have a single row in some calls
            return None if value is None or value.is_graph_input() else value
        case "Slice":
            steps = [1] if optional(node, 4) is None else integers(optional(node, 4))
            return value if {*(steps or [])} == {1} else None
        case "Max" | "Mean" | "Min" | "Split" | "Sum":
            return value if len(node.inputs) == len(node.outputs) == 1 else None
        case "Pad":
            return value if not any(integers(other) or [1]) else None
        case "Add" | "Mul" if number(value) == (node.op_type == "Mul"):
            return other
        case "Add" | "Div" | "Mul" | "Pow" | "Sub":
            return value if number(other) == (node.op_type not in ("Add", "Sub")) else None
        case "Transpose":
            return _untransposed(node)
    return None


def _untransposed(node: ir.Node) -> ir.Value | None:
    """The input of a Transpose that keeps the order, or of the first of two that undo each other; else None."""
    first, rank = made_by(node.inputs[0], "Transpose"), len(node.outputs[0].shape or ())
    order = permutation(node, rank)
    if order == sorted(order):
        return node.inputs[0]
    if first is not None and [permutation(first, rank)[axis] for axis in order] == sorted(order):
        return first.inputs[0]
    return None
