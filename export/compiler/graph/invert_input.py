"""Inverts a boolean input of a graph.

In: a graph and the input's name. Out: the same graph in place; its input now means the opposite, and its readers read
the input's Not. A second call restores the meaning.
"""

from __future__ import annotations

import onnx_ir as ir

from export.compiler.graph.constants import Constants


def invert_input(graph: ir.Graph, name: str) -> None:
    position = next(k for k, value in enumerate(graph.inputs) if value.name == name)
    old = graph.inputs[position]
    graph.inputs[position] = new = ir.Value(name=name, type=old.type, shape=old.shape)
    old.name = Constants(graph).name(f"{name}_inverted")
    graph.insert_before(graph[0], ir.Node("", "Not", [new], outputs=[old]))
