"""Drops operators that return their input as it is: no pass looks through them.

In: a graph with inferred shapes. Out: the same graph, in which the readers of such an operator read its input:

    x + 0    x - 0    x * 1    x / 1    x ** 1    Sum(x)    Slice of the entire axis    Pad by 0    Expand to x's shape
    Cast to x's dtype    reshapes back to x's shape

Reads constants, attributes and shapes. An operator stays if a shape is unknown, or if its output is the graph's.
"""

from __future__ import annotations

from collections.abc import Container

import onnx_ir as ir

from export.compiler.graph.attributes import optional, permutation
from export.compiler.graph.constants import integers, number
from export.compiler.graph.def_use import made_by, made_of
from export.compiler.graph.symbolic_shapes import Shapes, same_shape
from export.compiler.operators.table import RESHAPES


def drop_no_ops(graph: ir.Graph, only: Container[str] | None = None) -> None:
    """In place; the operators stay in the graph, and nothing reads them. `only`: the operators to drop, else all."""
    shapes = Shapes(graph)
    for node in list(graph):
        out = node.outputs[0]
        if node.domain or out.shape is None or out.is_graph_output() or (only and node.op_type not in only):
            continue
        value = _unshaped(shapes, out) if node.op_type in RESHAPES else _returned(node)
        if value is not None and value.shape is not None and same_shape(shapes.dims(value), shapes.dims(out)):
            ir.convenience.replace_all_uses_with(out, value)


def _unshaped(shapes: Shapes, out: ir.Value) -> ir.Value | None:
    """The last value of this shape before the reshapes that make `out`; None if there is none.

    A norm that is folded leaves a pair (B, N, D) -> (B N, D) and back. Between them a row of every image is no box.
    """
    source = made_of(out, *RESHAPES)
    while source is not None and source.shape is not None and not same_shape(shapes.dims(source), shapes.dims(out)):
        source = made_of(source, *RESHAPES)
    return source


def _returned(node: ir.Node) -> ir.Value | None:
    """The input that the node returns as it is, provided that its shape is the output's; None for other nodes.

    The shape decides for parts: the Slice x[:, -n:] of n tokens is x.
    """
    value, other = (optional(node, position) for position in (0, 1))
    match node.op_type:
        case "Expand" | "Tile":  # `share_names` repeats inputs that have a single row in some calls
            given = value
            while (repeated := made_by(given, "Expand")) is not None:
                given = repeated.inputs[0]
            return None if given is None or given.is_graph_input() else value
        case "Slice":
            steps = [1] if optional(node, 4) is None else integers(optional(node, 4))
            return value if {*(steps or [])} == {1} else None
        case "Concat" | "Max" | "Mean" | "Min" | "Split" | "Sum":
            return value if len(node.inputs) == len(node.outputs) == 1 else None
        case "Pad":
            return value if not any(integers(other) or [1]) else None
        case "Add" | "Mul" if number(value) == (node.op_type == "Mul"):
            return other
        case "Add" | "Div" | "Mul" | "Pow" | "Sub":
            return value if number(other) == (node.op_type not in ("Add", "Sub")) else None
        case "Cast" if value is not None:  # older exporters write one behind every softmax
            return value if value.dtype == node.outputs[0].dtype is not None else None
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
