"""Finds the two products of an attention around its Softmax, or writes an Attention operator as such products.

In: a graph with shapes and a Softmax or Attention node. Out: the MatMul of queries and keys, which makes the scores,
and the MatMul of weights and values. PyTorch's newer exporter adds a guard after the Softmax: rows whose tokens are all
masked become zero.
"""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from export.compiler.errors import Refused
from export.compiler.graph.attributes import attribute_float, attribute_int, given, has_window, optional
from export.compiler.graph.constants import Constants, is_constant, number
from export.compiler.graph.def_use import is_read, made_by, readers
from export.compiler.graph.node_builder import BOOL, nodes_before
from export.compiler.graph.symbolic_shapes import Dim, Shapes, same, same_shape

BETWEEN, MOST_BETWEEN = ("Add", "Sub", "Mul", "Div", "Where"), 16  # operators between scores and Softmax; how many
FLOOR = -1e30  # a softmax treats lower scores as minus infinity


def scores_of(shapes: Shapes, softmax: ir.Node) -> tuple[ir.Node, bool]:
    """The MatMul of queries and keys, and whether adding a constant to a row of its scores leaves the softmax equal.

    Raises Refused if other operators than scales, biases and masks stand between the MatMul and the Softmax.
    """
    value, uniform = given(softmax, 0), True
    while True:
        node = value.producer()
        uniform = uniform and len(readers(value)) == 1 and not value.is_graph_output()
        if node is None or node.domain or node.op_type not in ("MatMul", *BETWEEN):
            raise Refused.of(value, "stands between scores and softmax")
        if node.op_type == "MatMul":
            if not _has_shape_of_scores(shapes, value, softmax):
                raise Refused.of(value, "expected scores of the softmax's shape")
            if value.is_graph_output():
                raise Refused.of(value, "its scores are an output of the graph")
            return node, uniform
        scores = [operand for operand in node.inputs if operand is not None and _from_matmul(shapes, operand, softmax)]
        if len(scores) != 1:
            raise Refused.of(value, "stands between scores and softmax")
        uniform = uniform and _keeps_uniform(shapes, node, scores[0])
        value = scores[0]


def _from_matmul(shapes: Shapes, value: ir.Value, softmax: ir.Node, most: int = MOST_BETWEEN) -> bool:
    """Whether at most `most` operators of BETWEEN, of the shape of scores, lead back from the value to a MatMul."""
    if is_constant(value) or not _has_shape_of_scores(shapes, value, softmax):
        return False
    node = made_by(value, *BETWEEN) if most else None
    operands = node.inputs[node.op_type == "Where" :] if node is not None else ()  # without the condition
    leads = [_from_matmul(shapes, operand, softmax, most - 1) for operand in operands if operand is not None]
    return any(leads) or made_by(value, "MatMul") is not None


def _has_shape_of_scores(shapes: Shapes, value: ir.Value, softmax: ir.Node) -> bool:
    """Whether a value has the softmax's shape, or (batch, heads, queries, tokens) that a mask may repeat.

    A mask whose axes have other names than those of the ids may have more texts. The tokens of both agree, or the
    product with the values fails.
    """
    dims, others = shapes.dims(value), shapes.dims(softmax.outputs[0])
    if len(dims) == len(others) == 4:
        return same_shape(dims[1:3], others[1:3])
    return same_shape(dims, others)


def _keeps_uniform(shapes: Shapes, node: ir.Node, scores: ir.Value) -> bool:
    """Whether adding a number to a row of `scores` adds one number to the whole row of the node's output."""
    others = [operand for operand in node.inputs if operand is not None and operand is not scores]
    match node.op_type:
        case "Add" | "Sub":
            return True
        case "Mul":
            return shapes.rank(others[0]) == 0 or same(shapes.dims(others[0])[-1], 1)
        case "Div":
            last = shapes.dims(others[0])[-1:] if others else ()
            return node.inputs[0] is scores and (not last or same(last[0], 1))
        case _:
            fill = number(others[-1]) if node.inputs[0] is not scores else None
            return fill is not None and fill <= FLOOR


def pooled_of(shapes: Shapes, weights: ir.Value) -> tuple[ir.Node, bool]:
    """The MatMul of weights and values, and whether a guard may set rows of weights to zero.

    Raises Refused if the weights have another reader.
    """
    value, guarded = weights, False
    while True:
        uses = list(value.uses())
        kinds = sorted({use.node.op_type for use in uses})
        if value.is_graph_output():
            raise Refused(value.name or "", "Softmax", "its weights are an output of the graph")
        if kinds == ["MatMul"] and len(uses) == 1 and uses[0].idx == 0:
            return uses[0].node, guarded
        if kinds == ["IsNaN", "Where"] and len(uses) == 2:
            where = next(use for use in uses if use.node.op_type == "Where")
            zero = where.node.inputs[1]
            if where.idx != 2 or zero is None or number(zero) != 0:
                raise Refused(value.name or "", "Where", "expected a guard that sets rows to zero")
            value, guarded = where.node.outputs[0], True
        elif kinds == ["Reshape"] and len(uses) == 1 and _joins_heads(shapes, value, uses[0].node.outputs[0]):
            value = uses[0].node.outputs[0]
        else:
            raise Refused(value.name or "", "Softmax", f"its weights are read by {', '.join(kinds)}")


def _joins_heads(shapes: Shapes, weights: ir.Value, joined: ir.Value) -> bool:
    """Whether weights (batch, heads, queries, tokens) become (batch * heads, queries, tokens), as in DeBERTa."""
    before, after = shapes.dims(weights), shapes.dims(joined)
    return len(before) == 4 and len(after) == 3 and same_shape(before[2:], after[1:])


def attention_sizes(shapes: Shapes, node: ir.Node) -> tuple[int, Dim, Dim]:
    """The numbers of heads, queries and tokens. Raises Refused if `decompose_attention` does not support the node."""
    dims = shapes.dims(node.outputs[0])
    read_elsewhere = node.outputs[0].is_graph_output() or any(map(is_read, node.outputs[1:]))
    if len(dims) != 4 or read_elsewhere or any(value is not None for value in node.inputs[4:]):
        raise Refused.at(node, "expected (batch, heads, queries, features) inside the graph, and no cache")
    if attribute_int(node, "is_causal", 0) or has_window(node) or attribute_float(node, "softcap", 0.0):
        raise Refused.at(node, "expected no causal mask, no window and no softcap")
    heads, queries = dims[1], dims[2]
    if not isinstance(heads, int):
        raise Refused.at(node, f"expected a known number of heads, found {heads}")
    return heads, queries, shapes.dims(given(node, 1))[2]


def decompose_attention(shapes: Shapes, node: ir.Node) -> ir.Node:
    """Writes an Attention of opset 23 as MatMul, Softmax and MatMul; returns the Softmax.

    scores = scale * q K' + mask; a boolean mask becomes 0 and -inf. As in ONNX Runtime the lowest float of a mask also
    becomes -inf, and a query whose keys are all masked gives zeros.
    """
    constants = Constants(shapes.graph)
    nodes = nodes_before(constants, node)
    query, key, value = (given(node, position) for position in range(3))
    features = shapes.static(query, 3)
    if features is None or query.dtype is None:
        raise Refused.at(node, "expected a known number of features")

    scale = constants.add(np.array(attribute_float(node, "scale", 1 / math.sqrt(features))), "scale", query.dtype)
    scores = nodes.add("MatMul", [nodes.add("Mul", [query, scale]), nodes.transpose(key, [0, 1, 3, 2])])
    mask = optional(node, 3)
    if mask is not None:
        fills = 0.0, -np.inf, np.finfo(query.dtype.numpy()).min
        zero, masked, lowest = (constants.add(np.array(fill), "mask", query.dtype) for fill in fills)
        boolean = mask.dtype == BOOL
        seen = mask if boolean else nodes.add("Greater", [mask, lowest])
        scores = nodes.add("Add", [scores, nodes.add("Where", [seen, zero if boolean else mask, masked])])
    weights = made = nodes.add("Softmax", [scores], axis=-1)
    if mask is not None:
        weights = nodes.add("Where", [nodes.add("IsNaN", [made]), zero, made])
    ir.convenience.replace_all_uses_with(node.outputs[0], nodes.add("MatMul", [weights, value]))
    softmax = made.producer()
    if softmax is None:
        raise Refused.at(node, "expected a Softmax")
    return softmax
