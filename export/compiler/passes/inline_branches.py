"""Inlines the branch of an If whose condition does not depend on the graph's inputs.

In: a graph with named free dimensions. Out: the same outputs:

    If(true, then, else) = then        If(false, then, else) = else

TorchScript writes `x.tile(2)` with two Ifs on the number of axes. Refuses nothing by name: other Ifs stay.
"""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from export.compiler.graph.constants import Constants, constant
from export.compiler.graph.inline_functions import inline_functions


def inline_branches(model: ir.Model, fold: Callable[[ir.Model], None]) -> None:
    """In place. `fold`: folds values that do not depend on the inputs to constants, as conditions."""
    while any(map(_is_if, model.graph)):
        fold(model)
        decided = [node for node in model.graph if _is_if(node) and constant(node.inputs[0]) is not None]
        if not decided:
            return
        for node in decided:
            _inline(model.graph, node)
        inline_functions(model)


def _is_if(node: ir.Node) -> bool:
    return node.op_type == "If" and not node.domain


def branch_of(node: ir.Node) -> ir.Graph:
    """The branch of an If that its constant condition chooses."""
    condition = constant(node.inputs[0])
    return node.attributes["then_branch" if condition is not None and condition.all() else "else_branch"].as_graph()


def _inline(graph: ir.Graph, node: ir.Node) -> None:
    """Moves the branch's nodes and initialisers to before the If, under new names: other branches may use theirs."""
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
    new_outputs = [copy.outputs[0] for copy in copies]
    ir.convenience.replace_nodes_and_values(graph, node, [node], copies, node.outputs, new_outputs)
