"""Attention in the form that GPU kernels fuse: softmax(q k') v in rank 4, with nothing between product and softmax.

In: a graph after the compiler's passes. Out: the same answers:

    s (q k') = (s q) k'              the scores' factor goes to the queries
    (B, M, N) -> (B, 1, M, N)        absorbed attention is one head of M queries over N shared keys and values

Scores of a query that all images share come from one product with a weight; they stay.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np
import onnx_ir as ir

from export.compiler.errors import Refused, Site
from export.compiler.graph.attributes import attribute_int, given
from export.compiler.graph.constants import Constants, is_constant, number
from export.compiler.graph.node_builder import Nodes, nodes_before
from export.compiler.graph.symbolic_shapes import Shapes, same, same_shape
from export.compiler.passes.outcome import Outcome
from export.compiler.passes.prepare import settle

CHANGE = "products of rank 4, with the factor in the queries"


def fuse_attention(model: ir.Model, sizes: Mapping[str, int]) -> Outcome:
    """Rewrites each attention of `model` in place. A refusal names the node at which an attention has another form."""
    sites, refusals = [], []
    for softmax in [node for node in model.graph if node.op_type == "Softmax"]:
        try:
            _Attention(model.graph, softmax, Shapes(model.graph, sizes)).fuse()
            sites.append(Site.at(softmax, CHANGE))
        except Refused as reason:
            refusals.append(reason.refusal)
    settle(model)
    return Outcome(tuple(sites), tuple(refusals))


class _Attention:
    """A Softmax with the product of queries and keys before it, and the product with the values after it."""

    def __init__(self, graph: ir.Graph, softmax: ir.Node, shapes: Shapes) -> None:
        """Raises Refused if the nodes around `softmax` are no attention of rank 3 or 4."""
        self.graph, self.softmax, self.constants = graph, softmax, Constants(graph)
        scores, self.weights = _unshaped(softmax, shapes)
        self.scores, self.factor = _unscaled(scores)
        product, pooling = self.scores.producer(), [use.node for use in self.weights.uses()]
        if product is None or product.op_type != "MatMul" or is_constant(product.inputs[1]):
            raise Refused.of(self.scores, "expected a product of queries and keys")
        if [node.op_type for node in pooling] != ["MatMul"] or pooling[0].inputs[0] is not self.weights:
            readers = " and ".join(node.op_type for node in pooling)
            raise Refused(softmax.outputs[0].name or "", readers, "expected one product with the values")
        self.product, self.pooling = product, pooling[0]
        self.rank = len(shapes.dims(self.scores))
        if self.rank not in (3, 4):
            raise Refused.of(self.scores, f"expected scores of rank 3 or 4, found {self.rank}")
        width = shapes.static(self.pooling.outputs[0], -1)
        if self.rank == 3 and width is None:
            raise Refused.at(self.pooling, "expected values of a known width")
        self.width = width or 0

    def fuse(self) -> None:
        """Moves the factor to the queries, drops the Reshapes around the Softmax, and makes the products rank 4."""
        if self.factor != 1:
            dtype = self.scores.dtype or ir.DataType.FLOAT
            factor = self.constants.add(np.array(self.factor), f"{self.scores.name}_factor", dtype)
            self._feed(self.product, 0, "Mul", factor)
        self.softmax.replace_input_with(0, self.scores)
        self.softmax.attributes["axis"] = ir.AttrInt64("axis", -1)
        self.softmax.outputs[0].shape = self.scores.shape
        self.pooling.replace_input_with(0, self.softmax.outputs[0])
        if self.rank == 3:
            axis = self.constants.add_integers([1])
            for node, position in ((self.product, 0), (self.product, 1), (self.pooling, 1)):
                self._feed(node, position, "Unsqueeze", axis)
            pooled = self.pooling.outputs[0]
            after_pooling = Nodes(self.constants, put=partial(self.graph.insert_after, self.pooling))
            self.constants.replace(pooled, after_pooling.reshape(pooled, [0, -1, self.width]), "apart")
            for stale in (self.scores, self.softmax.outputs[0], pooled):
                stale.shape = None

    def _feed(self, node: ir.Node, position: int, operator: str, second: ir.Value) -> None:
        """Applies `operator` to the input at `position` of `node`, with `second` as the operator's second input."""
        value = given(node, position)
        result = nodes_before(self.constants, node).add(operator, [value, second])
        node.replace_input_with(position, result)


def _unshaped(softmax: ir.Node, shapes: Shapes) -> tuple[ir.Value, ir.Value]:
    """Input and output of `softmax`; those of the Reshapes around it if they undo each other and keep its axis.

    Raises Refused if the Softmax is not along its last axis.
    """
    scores, weights = given(softmax, 0), softmax.outputs[0]
    rank = shapes.rank(scores)
    if (axis := attribute_int(softmax, "axis", -1)) not in (-1, rank - 1):
        raise Refused.at(softmax, f"expected its last axis, found {axis}")
    reshape, readers = scores.producer(), [use.node for use in weights.uses()]
    if reshape is None or [node.op_type for node in (reshape, *readers)] != ["Reshape", "Reshape"]:
        return scores, weights
    before, after = shapes.dims(given(reshape, 0)), shapes.dims(readers[0].outputs[0])
    if same_shape(before, after) and same(before[-1], shapes.dims(scores)[-1]):
        return given(reshape, 0), readers[0].outputs[0]
    return scores, weights


def _unscaled(scores: ir.Value) -> tuple[ir.Value, float]:
    """The scores before a Mul or Div by a number, and the factor; 1.0 without such a node."""
    node = scores.producer()
    if node is None or node.op_type not in ("Mul", "Div"):
        return scores, 1.0
    first, second = given(node, 0), given(node, 1)
    value, other = (second, first) if is_constant(first) and node.op_type == "Mul" else (first, second)
    factor = number(other) if is_constant(other) else None
    if not factor:
        return scores, 1.0
    return value, factor if node.op_type == "Mul" else 1 / factor
