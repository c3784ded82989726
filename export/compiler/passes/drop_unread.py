"""Removes what no output reads.

A Shape does not keep its value alive: it is rebuilt from the graph's inputs.
"""

from __future__ import annotations

import onnx_ir as ir

from export.compiler.analyses.demand import WHOLE_VALUE, Demands, demand_shape
from export.compiler.graph.attributes import reads_shape_alone
from export.compiler.graph.def_use import remove_unused
from export.compiler.graph.shapes import Shapes
from export.compiler.operators.boxes import WHOLE
from export.compiler.operators.shape_inference import infer_new
from export.compiler.passes.materialise_parts import Materialiser


def refresh(model: ir.Model) -> None:
    """What a pass needs between two changes: no unread nodes, nodes in order, shapes."""
    remove_unused(model)
    if not _is_sorted(model.graph):
        model.graph.sort()
    infer_new(model)


def _is_sorted(graph: ir.Graph) -> bool:
    seen: set[ir.Node] = set()
    for node in graph:
        makers = (value.producer() for value in node.inputs if value is not None)
        if not all(maker is None or maker in seen for maker in makers):
            return False
        seen.add(node)
    return True


def drop_unread(model: ir.Model) -> None:
    refresh(model)
    shapes = Shapes(model.graph)
    demands: Demands = {output: [WHOLE] for output in model.graph.outputs}
    for node in reversed(model.graph):
        if reads_shape_alone(node):
            demand_shape(shapes, node, demands)
        elif any(output in demands for output in node.outputs):
            demands |= {value: [WHOLE] for value in node.inputs if value is not None}
    Materialiser(shapes, dict.fromkeys(demands, WHOLE_VALUE)).run()
    refresh(model)
