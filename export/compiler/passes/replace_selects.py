"""Replaces a sum of two masked values by a Where, which the passes know from masks of attentions.

In: a graph. Out: the same outputs. tf2onnx writes a choice that broadcasts in this form:

    x Cast(m) + y Cast(Not(m)) = Where(m, x, y)

Refuses nothing. Where x or y is infinite, the sum is NaN and the Where is not.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations

import onnx_ir as ir

from export.compiler.graph.constants import Constants
from export.compiler.graph.def_use import made_by, made_of
from export.compiler.graph.node_builder import nodes_before


def replace_selects(graph: ir.Graph) -> None:
    """In place; the products stay in the graph, and nothing reads them."""
    constants = Constants(graph)
    for node in list(graph):
        chosen = next(_choices(node), None) if made_by(node.outputs[0], "Add") else None
        if chosen is not None:
            out = node.outputs[0]
            constants.replace(out, nodes_before(constants, node).add("Where", chosen, out.shape), "chosen")


def _choices(total: ir.Node) -> Iterator[tuple[ir.Value, ir.Value, ir.Value]]:
    """The inputs of the Where that an Add of two products is."""
    for first, second in permutations(total.inputs):
        for shown, value in _masked(first):
            yield from ((shown, value, other) for hidden, other in _masked(second) if made_of(hidden, "Not") is shown)


def _masked(value: ir.Value | None) -> Iterator[tuple[ir.Value, ir.Value]]:
    """The condition and the other factor of a product with a boolean."""
    product = made_by(value, "Mul")
    for mask, other in permutations(product.inputs) if product is not None else ():
        condition = made_of(mask, "Cast")
        if condition is not None and condition.dtype == ir.DataType.BOOL and other is not None:
            yield condition, other
