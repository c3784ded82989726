"""Counts the multiply-accumulates of a graph.

In: the shapes of a graph, with sizes for its free dimensions. Out: `Work`.
"""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from export.compiler.errors import Refused
from export.compiler.graph.symbolic_shapes import Shapes
from export.compiler.operators.mac_formulas import no_formula
from export.compiler.operators.table import operator_of


@dataclass(frozen=True)
class Work:
    """Multiply-accumulates. `macs`: of products whose sizes are known. `guessed`: of products with unknown sizes, which
    are taken for the largest known size. `uncounted`: the names of all operators that `macs` leaves out.
    """

    macs: int
    guessed: int = 0
    uncounted: tuple[str, ...] = ()

    @property
    def total(self) -> int:
        return self.macs + self.guessed


def graph_work(shapes: Shapes) -> Work:
    macs, guessed, uncounted = 0, 0, []
    for node in (node for node in shapes.graph if operator_of(node).macs is not None):
        values = [value for value in (*node.inputs, node.outputs[0]) if value is not None and value.name]
        if is_multiplying(node) and all(map(shapes.is_sized, values)):
            macs += node_macs(shapes, node)
        else:
            guessed += node_macs(shapes, node)
            uncounted.append(_name(node))
    return Work(macs, guessed, tuple(uncounted))


def is_multiplying(node: ir.Node) -> bool:
    """Whether the operator multiplies matrices and has a formula for its multiply-accumulates."""
    return operator_of(node).macs not in (None, no_formula)


def node_macs(shapes: Shapes, node: ir.Node) -> int:
    """The multiply-accumulates of a node; 0 if its operator has no formula or a rank is unknown."""
    macs = operator_of(node).macs
    try:
        return macs(shapes, node) if macs is not None else 0
    except Refused:
        return 0


def _name(node: ir.Node) -> str:
    return f"{node.op_type} {next((value.name for value in node.outputs if value.name), node.name)}"
