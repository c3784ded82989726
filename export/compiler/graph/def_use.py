"""Who makes a value, who reads it, and what nobody reads.

In: a value. Out: nodes; those that read no more than its shape do not count as readers.
"""

from __future__ import annotations

import onnx_ir as ir

from export.compiler.graph.attributes import reads_shape_alone


def made_by(value: ir.Value | None, *operators: str) -> ir.Node | None:
    """The node that computes the value, if it is one of these operators of ONNX."""
    node = value.producer() if value is not None else None
    return node if node is not None and not node.domain and node.op_type in operators else None


def made_of(value: ir.Value | None, *operators: str) -> ir.Value | None:
    """The first input of such a node."""
    node = made_by(value, *operators)
    return node.inputs[0] if node is not None else None


def readers(value: ir.Value) -> list[ir.Node]:
    """As often as they read it."""
    return [use.node for use in value.uses() if not reads_shape_alone(use.node)]


def only_reader(value: ir.Value) -> ir.Node | None:
    """None if several nodes or the graph's user read it."""
    found = {*readers(value)}
    return found.pop() if len(found) == 1 and not value.is_graph_output() else None


def is_read(value: ir.Value) -> bool:
    """Whether a node or the graph's user reads it, or its shape."""
    return bool(value.uses()) or value.is_graph_output()


def remove_unused(model: ir.Model) -> None:
    """onnx_ir's own pass drops single outputs, too, and ONNX Runtime does not run an Attention that lacks an output."""
    graph = model.graph
    for node in reversed(list(graph)):
        if not any(map(is_read, node.outputs)):
            graph.remove(node, safe=True)
    for name, value in list(graph.initializers.items()):
        if not is_read(value) and not value.is_graph_input():
            del graph.initializers[name]
