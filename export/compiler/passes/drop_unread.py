"""Removes the nodes that no output reads.

In: a graph that a pass has changed. Out: the same outputs, nodes in order, and inferred shapes. A Shape does not keep
the value alive whose shape it reads: where the sizes follow from the graph's inputs, it is rebuilt from them.
"""

from __future__ import annotations

import onnx_ir as ir

from export.compiler.analyses.demand import WHOLE_VALUE, Demands, demand_shape
from export.compiler.graph.attributes import reads_shape_alone
from export.compiler.graph.def_use import remove_unused
from export.compiler.graph.symbolic_shapes import Shapes
from export.compiler.operators.boxes import WHOLE
from export.compiler.operators.shape_inference import infer_new
from export.compiler.passes.materialise_parts import Materialiser


def refresh(model: ir.Model) -> None:
    """Restores what a pass needs between two changes: no unread nodes, nodes in order, inferred shapes."""
    remove_unused(model)
    if not _is_sorted(model.graph):
        model.graph.sort()
    infer_new(model)


def _is_sorted(graph: ir.Graph) -> bool:
    seen: set[ir.Node] = set()
    for node in graph:
        producers = (value.producer() for value in node.inputs if value is not None)
        if not all(producer is None or producer in seen for producer in producers):
            return False
        seen.add(node)
    return True


def drop_unread(model: ir.Model) -> None:
    """In place. Also does what `refresh` does."""
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
