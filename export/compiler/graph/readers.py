"""Who reads a value.

In: a value. Out: nodes; those that read no more than its shape do not count.
"""

from __future__ import annotations

import onnx_ir as ir

from export.compiler.graph.attributes import reads_shape_alone


def readers(value: ir.Value) -> list[ir.Node]:
    """As often as they read it."""
    return [use.node for use in value.uses() if not reads_shape_alone(use.node)]


def only_reader(value: ir.Value) -> ir.Node | None:
    """None if several nodes or the graph's user read it."""
    found = {*readers(value)}
    return found.pop() if len(found) == 1 and not value.is_graph_output() else None
