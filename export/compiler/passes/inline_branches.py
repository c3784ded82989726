"""Takes the branch of an If whose condition does not depend on the inputs.

In: a graph with named free dimensions. Out: the same answers. TorchScript writes `x.tile(2)` with two of them, which
ask for the number of axes.
"""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from export.compiler.graph.constants import Constants, constant
from export.compiler.graph.inline_functions import inline_functions


def inline_branches(model: ir.Model, fold: Callable[[ir.Model], None]) -> None:
    """`fold`: makes constants of what does not depend on the inputs."""
    while any(map(_is_if, model.graph)):
        fold(model)
        known = [node for node in model.graph if _is_if(node) and constant(node.inputs[0]) is not None]
        if not known:
            return
        for node in known:
            _take(model.graph, node)
        inline_functions(model)


def _is_if(node: ir.Node) -> bool:
    return node.op_type == "If" and not node.domain


def branch_of(node: ir.Node) -> ir.Graph:
    """Of a known condition."""
    condition = constant(node.inputs[0])
    return node.attributes["then_branch" if condition is not None and condition.all() else "else_branch"].as_graph()


def _take(graph: ir.Graph, node: ir.Node) -> None:
    """Names of a branch are its own: another may have the same."""
    branch, constants = branch_of(node), Constants(graph)
    for value in list(branch.initializers.values()):
        del branch.initializers[value.name or ""]
        value.name = constants.name(value.name or "weight")
        graph.register_initializer(value)
    nodes, results = list(branch), list(branch.outputs)
    branch.outputs.clear()
    branch.remove(nodes)
    for inner in nodes:
        for value in inner.outputs:
            value.name = constants.name(value.name) if value.name else value.name
    copies = [ir.node("Identity", [value]) for value in results]
    graph.insert_before(node, nodes)
    made = [copy.outputs[0] for copy in copies]
    ir.convenience.replace_nodes_and_values(graph, node, [node], copies, node.outputs, made)
