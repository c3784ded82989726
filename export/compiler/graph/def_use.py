"""Which node computes a value, and which nodes read it. Nodes that read only its shape do not count as readers."""

from __future__ import annotations

from collections.abc import Container

import onnx_ir as ir

from export.compiler.graph.attributes import reads_shape_alone


def made_by(value: ir.Value | None, *operators: str) -> ir.Node | None:
    """The node that computes the value, if it is an ONNX operator of one of these types; else None."""
    node = value.producer() if value is not None else None
    return node if node is not None and not node.domain and node.op_type in operators else None


def made_of(value: ir.Value | None, *operators: str) -> ir.Value | None:
    """The first input of the node that `made_by` returns, or None."""
    node = made_by(value, *operators)
    return node.inputs[0] if node is not None else None


def readers(value: ir.Value) -> list[ir.Node]:
    """The nodes that read the value. A node that reads it twice is listed twice."""
    return [use.node for use in value.uses() if not reads_shape_alone(use.node)]


def only_reader(value: ir.Value) -> ir.Node | None:
    """The node that alone reads the value; None if several nodes read it, or if it is an output of the graph."""
    nodes = {*readers(value)}
    return nodes.pop() if len(nodes) == 1 and not value.is_graph_output() else None


def other_readers(value: ir.Value, known: Container[ir.Node | None]) -> list[ir.Node | None]:
    """The nodes that read the value and are not `known`. If the value is an output of the graph, None is the last."""
    user = [None] if value.is_graph_output() else []
    return [*(node for node in readers(value) if node not in known), *user]


def is_read(value: ir.Value) -> bool:
    """Whether a node reads the value or its shape, or the value is an output of the graph."""
    return bool(value.uses()) or value.is_graph_output()


def remove_unused(model: ir.Model) -> None:
    """Removes nodes and initialisers that nothing reads, in place. A node stays if any of its outputs is read.

    onnx_ir's pass also drops single outputs of a node. ONNX Runtime does not run an Attention that lacks an output.
    """
    graph = model.graph
    for node in reversed(list(graph)):
        if not any(map(is_read, node.outputs)):
            graph.remove(node, safe=True)
    for name, value in list(graph.initializers.items()):
        if not is_read(value) and not value.is_graph_input():
            del graph.initializers[name]
