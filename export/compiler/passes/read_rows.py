"""Second pass: computes only the part of each value that the outputs read.

In: any graph. Out: the same outputs. A classifier reads row 0 of the last block, so its query, attention, output
projection, FFN and norms are computed for that row; keys and values need every row:

    logits = head(x_L[:, 0]),   x_L[:, 0] = x[:, 0] + MLP(...)[:, 0],   A[:, 0] V = softmax(q[:, 0] K') V

`demand` goes backward, `materialise` forward. `chosen_row` first moves the choice of a row at run time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import onnx_ir as ir

from export.compiler.analyses.demand import WHOLE_VALUE, Demands, analyse
from export.compiler.errors import Refusal, Site
from export.compiler.graph.shapes import Shapes
from export.compiler.operators.boxes import WHOLE, Box
from export.compiler.operators.costs import is_multiplying, node_macs
from export.compiler.passes.materialise import Materialiser
from export.compiler.passes.move_choices import move_choices
from export.compiler.passes.outcome import Outcome


@dataclass(frozen=True)
class RowsPlan:
    shapes: Shapes
    demands: Demands
    sites: tuple[Site, ...]


def read_rows(model: ir.Model, sizes: Mapping[str, int]) -> Outcome:
    moved = move_choices(model)
    plan = _plan(Shapes(model.graph, sizes))
    sites = (*moved, *plan.sites)
    if not sites:
        return Outcome(refusals=(_obstacle(model.graph),))
    Materialiser(plan.shapes, plan.demands).run()
    return Outcome(sites)


def _plan(shapes: Shapes) -> RowsPlan:
    demands = analyse(shapes)
    sites = []
    for node in shapes.graph:
        boxes = demands.get(node.outputs[0], WHOLE_VALUE)
        if is_multiplying(node) and boxes != WHOLE_VALUE:
            parts = " and ".join(_words(part) for part in boxes)
            share = sum(_share(shapes, node.outputs[0], part) for part in boxes)
            saved = (1 - share) * node_macs(shapes, node)
            if saved > 0:
                sites.append(Site(node.outputs[0].name or "", node.op_type, f"computed only for {parts}"))
    return RowsPlan(shapes, demands, tuple(sites))


def _obstacle(graph: ir.Graph) -> Refusal:
    """The first value of unknown shape, else the output."""
    for node in graph:
        for value in node.outputs:
            if value.shape is None:
                return Refusal(value.name or "", node.op_type, "its shape does not follow from the graph")
    reason = "no multiplying operator computes more than the outputs read"
    return Refusal(graph.outputs[0].name or "", "graph output", reason)


def _words(part: Box) -> str:
    if part == WHOLE:
        return "all"
    return ", ".join(f"{_indices(chosen)} of axis {axis}" for axis, chosen in part)


def _indices(chosen: tuple[int, ...]) -> str:
    if len(chosen) > 2 and chosen == tuple(range(chosen[0], chosen[-1] + 1)):
        return f"{chosen[0]} to {chosen[-1]}"
    return ", ".join(map(str, chosen[:4])) + (" …" if len(chosen) > 4 else "")


def _share(shapes: Shapes, value: ir.Value, part: Box) -> float:
    dims = shapes.dims(value)
    return math.prod(len(chosen) / max(shapes.nominal(dims[axis]), len(chosen)) for axis, chosen in part)
