"""Drops operators that give a value as it is, such as x * 1: no pass looks through them.

In: a graph with inferred shapes. Out: it, where their readers read the value.
"""

from __future__ import annotations

import onnx_ir as ir

from export.compiler.graph.attributes import optional, permutation
from export.compiler.graph.constants import integers
from export.compiler.graph.def_use import made_by
from export.compiler.graph.shapes import Shapes, same_shape


def drop_no_ops(graph: ir.Graph) -> None:
    """In place; the operators stay unread."""
    shapes = Shapes(graph)
    for node in list(graph):
        value, out = _copied(node), node.outputs[0]
        if value is None or node.domain or out.is_graph_output() or None in (value.shape, out.shape):
            continue
        if same_shape(shapes.dims(value), shapes.dims(out)):
            ir.convenience.replace_all_uses_with(out, value)


def _copied(node: ir.Node) -> ir.Value | None:
    """What the node gives if that has the shape of its output: x * 1, or a part as long as its axis, x[:, -n:] of n
    tokens, which no rule could place.
    """
    value, other = (optional(node, position) for position in (0, 1))
    match node.op_type:
        case "Expand" | "Tile":  # of an input `share_names` repeats a single row
            return None if value is None or value.is_graph_input() else value
        case "Slice":
            steps = [1] if optional(node, 4) is None else integers(optional(node, 4))
            return value if {*(steps or [])} == {1} else None
        case "Max" | "Mean" | "Min" | "Split" | "Sum":
            return value if len(node.inputs) == len(node.outputs) == 1 else None
        case "Pad":
            return value if not any(integers(other) or [1]) else None
        case "Add" | "Mul" if _is_number(value, node.op_type == "Mul"):
            return other
        case "Add" | "Div" | "Mul" | "Pow" | "Sub":
            return value if _is_number(other, node.op_type not in ("Add", "Sub")) else None
        case "Transpose":
            return _turned_back(node)
    return None


def _is_number(value: ir.Value | None, number: int) -> bool:
    held = value.const_value if value is not None else None
    return held is not None and held.size == 1 and bool((held.numpy() == number).all())


def _turned_back(node: ir.Node) -> ir.Value | None:
    """The value, one Transpose or two before, whose axes have the order of the output's."""
    maker, rank = made_by(node.inputs[0], "Transpose"), len(node.outputs[0].shape or ())
    order = permutation(node, rank)
    if order == sorted(order):
        return node.inputs[0]
    if maker is not None and [permutation(maker, rank)[axis] for axis in order] == sorted(order):
        return maker.inputs[0]
    return None
