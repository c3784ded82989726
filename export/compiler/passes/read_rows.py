"""Computes only the part of each value that the outputs read.

In: any graph. Out: the same outputs. A classifier reads row 0 of the last block, so its query, attention, output
projection, FFN and norms are computed for that row; keys and values need every row:

    logits = head(x_L[:, 0]),   x_L[:, 0] = x[:, 0] + MLP(...)[:, 0],   A[:, 0] V = softmax(q[:, 0] K') V

`demand` goes backward, `materialise` forward. `move_choices` first moves the choice of a row at run time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import onnx_ir as ir

from export.compiler.analyses.demand import WHOLE_VALUE, Demands, analyse, share
from export.compiler.analyses.stops import in_words, stops
from export.compiler.errors import Site
from export.compiler.graph.shapes import Shapes
from export.compiler.operators.costs import is_multiplying, node_macs
from export.compiler.passes.materialise import Materialiser
from export.compiler.passes.move_choices import move_choices
from export.compiler.passes.outcome import Outcome


def read_rows(model: ir.Model, sizes: Mapping[str, int]) -> Outcome:
    moved = move_choices(model, sizes)
    shapes = Shapes(model.graph, sizes)
    demands = analyse(shapes)
    sites = (*moved, *_sites(shapes, demands))
    refusals = stops(shapes, demands) or ([] if sites else [_obstacle(model.graph)])
    if sites:
        Materialiser(shapes, demands).run()
    return Outcome(sites, tuple(refusals))


def _sites(shapes: Shapes, demands: Demands) -> Iterator[Site]:
    for node in shapes.graph:
        boxes = demands.get(node.outputs[0], WHOLE_VALUE)
        if is_multiplying(node) and boxes != WHOLE_VALUE:
            parts = " and ".join(in_words(part) for part in boxes)
            computed = sum(share(shapes, node.outputs[0], part) for part in boxes)
            if computed < 1 and node_macs(shapes, node):
                yield Site.at(node, f"computed only for {parts}")


def _obstacle(graph: ir.Graph) -> Site:
    reason = "no multiplying operator computes more than the outputs read"
    return Site(graph.outputs[0].name or "", "graph output", reason)
