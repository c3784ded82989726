"""Prunes rows: computes only the part of every value that the outputs read.

In: any graph. Out: the same outputs. A classifier reads row 0 of the last block, so its query, attention, output
projection, feed-forward layers and norms are computed for that row alone; keys and values need every row:

    logits = head(x_L[:, 0]),   x_L[:, 0] = x[:, 0] + MLP(...)[:, 0],   A[:, 0] V = softmax(q[:, 0] K') V

Reads the rules of `table`: `demand` follows them from the outputs backward, `materialise_parts` builds the parts.
Before that, `hoist_gathers` hoists Gathers of rows chosen at run time, and `decompose_fused` decomposes fused operators
that would compute all rows. After that, `hoist_means` computes products for a mean of rows alone.

Refuses, by its name, the operator at which a part becomes the entire value (see `pruning_stops`); if there is no part,
the output.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import onnx_ir as ir

from export.compiler.analyses.demand import WHOLE_VALUE, Demands, analyse, merged, share
from export.compiler.analyses.pruning_stops import in_words, stops
from export.compiler.errors import Site
from export.compiler.graph.attributes import reads_shape_alone
from export.compiler.graph.symbolic_shapes import Shapes
from export.compiler.operators.boxes import WHOLE
from export.compiler.operators.costs import is_multiplying, node_macs
from export.compiler.passes.decompose_fused import decompose_fused
from export.compiler.passes.drop_unread import refresh
from export.compiler.passes.hoist_gathers import hoist_gathers
from export.compiler.passes.hoist_means import hoist_means
from export.compiler.passes.materialise_parts import Materialiser
from export.compiler.passes.outcome import Outcome

NOTHING = "no multiplying operator computes more than the outputs read"


def read_rows(model: ir.Model, sizes: Mapping[str, int]) -> Outcome:
    hoisted = hoist_gathers(model, sizes)
    shapes = Shapes(model.graph, sizes)
    demands, asked = analyse(shapes)
    if decompose_fused(model, lambda node: _computes_more(shapes, node.outputs[0], demands, asked)):
        shapes = Shapes(model.graph, sizes)
        demands, asked = analyse(shapes)
    sites = (*hoisted, *_sites(shapes, demands))
    refusals = stops(shapes, demands, asked)
    if sites:
        Materialiser(shapes, demands).run()
        refresh(model)
    if not (sites := (*sites, *hoist_means(model, sizes))) and not refusals:
        refusals = [Site(model.graph.outputs[0].name or "", "graph output", NOTHING)]
    return Outcome(sites, tuple(refusals))


def _computes_more(shapes: Shapes, value: ir.Value, demands: Demands, asked: Demands) -> bool:
    """Whether the readers of a value need only a part, and its operator computes it entirely all the same."""
    if WHOLE not in demands.get(value, []) or any(reads_shape_alone(use.node) for use in value.uses()):
        return False
    return WHOLE not in merged(shapes, value, asked.get(value, [WHOLE]))


def _sites(shapes: Shapes, demands: Demands) -> Iterator[Site]:
    """The multiplying operators of which only a part is computed."""
    for node in shapes.graph:
        boxes = demands.get(node.outputs[0], WHOLE_VALUE)
        if is_multiplying(node) and boxes != WHOLE_VALUE:
            parts = " and ".join(in_words(part) for part in boxes)
            computed = sum(share(shapes, node.outputs[0], part) for part in boxes)
            if computed < 1 and node_macs(shapes, node):
                yield Site.at(node, f"computed only for {parts}")
