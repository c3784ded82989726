"""Removes nodes and weights that nothing reads.

onnx_ir's own pass also drops single outputs of a node, and ONNX Runtime does not run an Attention that lacks one.
"""

from __future__ import annotations

import onnx_ir as ir


def remove_unused(model: ir.Model) -> None:
    graph = model.graph
    for node in reversed(list(graph)):
        if not any(value.uses() or value.is_graph_output() for value in node.outputs):
            graph.remove(node, safe=True)
    for name, value in list(graph.initializers.items()):
        if not value.uses() and not value.is_graph_output() and not value.is_graph_input():
            del graph.initializers[name]
