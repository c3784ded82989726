"""Decomposes ONNX Runtime's fused operators into operators of which other passes can compute parts.

In: a prepared graph, and a function that says which nodes to decompose. Out: the same outputs:

    EmbedLayerNormalization    SkipLayerNormalization(words[ids] + segments[segment_ids], positions[position_ids])
    FusedMatMul                alpha a b, where a or b may be transposed
    Attention                  X Wq + bq, X Wk + bk, X Wv + bv, and then as MultiHeadAttention
    MultiHeadAttention         softmax(scale q k' + filter where the mask is 0 + bias) v for every head

A fused attention takes 2 to 12 % less time, but computes all rows and reads all tokens.

Refuses nothing by name. An attention stays fused if it has a past, rotary embeddings, a causal mask, a mask of another
form or a second output; a product if it has transposed batches; an embedding if it counts tokens without a mask.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from export.compiler.graph.attributes import (
    attribute_float,
    attribute_int,
    attribute_ints,
    factor_axes,
    given,
    optional,
)
from export.compiler.graph.constants import Constants, is_constant, of_type, stored
from export.compiler.graph.def_use import is_read, remove_unused
from export.compiler.graph.node_builder import INT64, Nodes, nodes_before
from export.compiler.graph.symbolic_shapes import Shapes, same
from export.compiler.operators.contrib_demand_rules import DOMAIN
from export.compiler.operators.shape_inference import infer

FILTER = -10000.0  # what ONNX Runtime adds where the mask is 0
EMBEDDING, PRODUCT = "EmbedLayerNormalization", "FusedMatMul"
BIAS = 5  # the position of the input that is added to the scores


class Inputs(NamedTuple):
    """Positions of an attention's inputs."""

    parts: tuple[int, ...]  # the tokens, or queries, keys and values
    constants: tuple[int, ...]  # the last is the bias of queries, keys and values
    mask: int
    unsupported: tuple[int, ...]  # with such an input the attention stays fused


INPUTS = {
    "Attention": Inputs((0,), (1, 2), 3, (4, 6)),
    "MultiHeadAttention": Inputs((0, 1, 2), (3,), 4, (6, 7, 8, 9)),
}


class Graph(NamedTuple):
    """What decompositions share. `filters`: of masks that were decomposed before, what is added to the scores."""

    shapes: Shapes
    constants: Constants
    filters: dict[ir.Value, ir.Value]


def decompose_fused(model: ir.Model, wanted: Callable[[ir.Node], bool]) -> bool:
    """In place. Decomposes the nodes for which `wanted` is true and that this file can decompose; whether it did."""
    graph = Graph(Shapes(model.graph), Constants(model.graph), {})
    fused = [node for node in model.graph if node.domain == DOMAIN and node.op_type in RULES and wanted(node)]
    fused = [node for node in fused if RULES[node.op_type].fits(graph.shapes, node)]
    for node in fused:
        RULES[node.op_type].decompose(graph, node)
    if fused:
        remove_unused(model)
        infer(model)
    return bool(fused)


def _counts_by_mask(shapes: Shapes, node: ir.Node) -> bool:
    """Whether an embedding has ids (texts, tokens), and a mask if its second output, each text's tokens, is read."""
    ids, is_counted = given(node, 0), is_read(node.outputs[1])
    return ids.shape is not None and shapes.rank(ids) == 2 and not (is_counted and optional(node, 7) is None)


def _decompose_embedding(graph: Graph, node: ir.Node) -> None:
    constants = graph.constants
    nodes, (out, counts, *sums) = nodes_before(constants, node), node.outputs
    ids, segment_ids, words, positions, segments = (optional(node, k) for k in range(5))
    mask, position_ids = optional(node, 7), optional(node, 8)
    if position_ids is None:
        length = nodes.scalar_of(nodes.sizes(given(node, 0), [1]))
        position_ids = nodes.unsqueeze(nodes.range(length), [0])
    token = nodes.add("Gather", [words, ids])
    if segment_ids is not None:
        token = nodes.add("Add", [token, nodes.add("Gather", [segments, segment_ids])])
    position = nodes.add("Gather", [positions, position_ids])
    epsilon = {"epsilon": attribute_float(node, "epsilon", 1e-12)}
    terms = [token, position, *node.inputs[5:7]]
    norm = ir.node("SkipLayerNormalization", terms, epsilon, domain=DOMAIN, num_outputs=4)
    constants.replace(out, nodes.put(norm, f"{out.name}_norm", out.dtype), "fused")
    for embedded in filter(is_read, sums):
        of_type(norm.outputs[3], out.dtype).name = constants.name("embedded")
        constants.replace(embedded, norm.outputs[3], "fused")
    if mask is not None and is_read(counts):
        one = constants.add(np.ones((), np.int32), "one", mask.dtype)
        is_shown = nodes.cast(nodes.add("Equal", [mask, one]), ir.DataType.INT32)
        constants.replace(counts, nodes.sum(is_shown, 1, keepdims=0), "fused")


def _multiplies_matrices(shapes: Shapes, node: ir.Node) -> bool:
    """Whether both factors of a FusedMatMul have known ranks from 2 on."""
    return all(value.shape is not None and shapes.rank(value) > 1 for value in (given(node, 0), given(node, 1)))


def _decompose_product(graph: Graph, node: ir.Node) -> None:
    shapes, constants, _ = graph
    nodes, out, factors = nodes_before(constants, node), node.outputs[0], [given(node, 0), given(node, 1)]
    for position, factor in enumerate(factors):
        factors[position] = nodes.transpose(factor, factor_axes(node, position, shapes.rank(factor)))
    product = nodes.add("MatMul", factors)
    if (alpha := attribute_float(node, "alpha", 1)) != 1:
        product = nodes.add("Mul", [product, constants.add(np.array(alpha, np.float32), "alpha", out.dtype)])
    constants.replace(out, product, "fused")


def _has_plain_form(shapes: Shapes, node: ir.Node) -> bool:
    """Whether an attention has only inputs, attributes and read outputs that the equation has."""
    positions, operands = INPUTS[node.op_type], dict(enumerate(node.inputs))
    if any(attribute_int(node, name, 0) for name in ("unidirectional", "do_rotary")):
        return False
    if any(operands.get(k) for k in positions.unsupported) or any(map(is_read, node.outputs[1:])):
        return False
    if not all(operands.get(k) is None or is_constant(operands[k]) for k in positions.constants):
        return False
    ranks = {**dict.fromkeys(positions.parts, 3), BIAS: 4}
    for k, value in operands.items():
        if value is not None and (value.shape is None or shapes.rank(value) != ranks.get(k, shapes.rank(value))):
            return False
    has_features = node.op_type == "Attention" or all(shapes.static(given(node, k), 2) for k in positions.parts)
    return has_features and _is_token_mask(shapes, node, operands.get(positions.mask))


def _is_token_mask(shapes: Shapes, node: ir.Node, mask: ir.Value | None) -> bool:
    """Whether a mask is (texts, tokens) or (texts, queries, tokens). Attention may also have the texts' lengths."""
    if mask is None or shapes.rank(mask) in (2, 3):
        return True
    is_vector = node.op_type == "Attention" and shapes.rank(mask) == 1
    return is_vector and same(shapes.dims(mask)[0], shapes.dims(given(node, 0))[0])


def _decompose_attention(graph: Graph, node: ir.Node) -> None:
    shapes, constants, filters = graph
    nodes, out, heads = nodes_before(constants, node), node.outputs[0], attribute_int(node, "num_heads", 1)
    (queries, keys, values), (size, _, features) = _parts(shapes, nodes, node)
    factor = attribute_float(node, "scale", 0) or (size // heads) ** -0.5
    scale = constants.add(np.array(factor, np.float32), "scale", out.dtype)

    def by_heads(value: ir.Value, size: int, order: tuple[int, ...]) -> ir.Value:
        return nodes.transpose(nodes.reshape(value, [0, 0, heads, size // heads]), order)

    scaled = by_heads(nodes.add("Mul", [queries, scale]), size, (0, 2, 1, 3))
    scores = nodes.add("MatMul", [scaled, by_heads(keys, size, (0, 2, 3, 1))])
    terms = [term for term in (_filter(nodes, node, filters), optional(node, BIAS)) if term is not None]
    if terms:  # first their sum, as the operator computes it: with a filter of -10000 another order rounds otherwise
        added = terms[0] if len(terms) == 1 else nodes.add("Add", terms)
        scores = nodes.add("Add", [scores, added])
    weights = nodes.add("Softmax", [scores], axis=3)
    joined = nodes.add("MatMul", [weights, by_heads(values, features, (0, 2, 1, 3))])
    rows = nodes.reshape(nodes.transpose(joined, (0, 2, 1, 3)), [0, 0, features])
    constants.replace(out, rows, "fused")


def _parts(shapes: Shapes, nodes: Nodes, node: ir.Node) -> tuple[list[ir.Value], list[int]]:
    """Queries, keys and values (texts, tokens, features), and the numbers of their features."""
    positions, dtype = INPUTS[node.op_type], node.outputs[0].dtype
    parts = [given(node, k) for k in positions.parts]
    sizes = [shapes.static(part, 2) or 0 for part in parts]
    weight, bias = stored(node.inputs[1]), stored(optional(node, positions.constants[-1]))
    if node.op_type == "Attention" and weight is not None:
        sizes = attribute_ints(node, "qkv_hidden_sizes") or [weight.shape[1] // 3] * 3
        columns = np.split(weight, np.cumsum(sizes)[:2], 1)
        weights = [nodes.constants.add(part, "projection", dtype) for part in columns]
        parts = [nodes.add("MatMul", [*parts, factor]) for factor in weights]
    if bias is not None:
        terms = [nodes.constants.add(part, "bias", dtype) for part in np.split(bias, np.cumsum(sizes)[:2])]
        parts = [nodes.add("Add", [part, term]) for part, term in zip(parts, terms, strict=True)]
    return parts, sizes


def _filter(nodes: Nodes, node: ir.Node, filters: dict[ir.Value, ir.Value]) -> ir.Value | None:
    """What a mask adds to the scores: 0, or a large negative number where it hides. None without a mask.

    A mask that several attentions read makes one such value.
    """
    mask = optional(node, INPUTS[node.op_type].mask)
    if mask is None or mask in filters:
        return filters.get(mask) if mask is not None else None
    rank, dtype = len(mask.shape or ()), node.outputs[0].dtype
    if rank == 1:
        length = nodes.scalar_of(nodes.sizes(given(node, 0), [1]))
        positions = nodes.range(length)
        lengths = nodes.unsqueeze(nodes.cast(mask, INT64), [1])
        is_shown = nodes.add("Less", [nodes.unsqueeze(positions, [0]), lengths])
    else:
        zero = nodes.constants.add(np.zeros((), np.int32), "nothing", mask.dtype)
        is_shown = nodes.add("Greater", [mask, zero])
    lowest = attribute_float(node, "mask_filter_value", FILTER)
    shown, hidden = (nodes.constants.add(np.array(term, np.float32), "filter", dtype) for term in (0, lowest))
    term = nodes.add("Where", [is_shown, shown, hidden])
    filters[mask] = nodes.unsqueeze(term, [1] if rank == 3 else [1, 2])
    return filters[mask]


class Rule(NamedTuple):
    """Whether a node has a form that can be decomposed, and how."""

    fits: Callable[[Shapes, ir.Node], bool]
    decompose: Callable[[Graph, ir.Node], None]


RULES = {
    EMBEDDING: Rule(_counts_by_mask, _decompose_embedding),
    PRODUCT: Rule(_multiplies_matrices, _decompose_product),
    **dict.fromkeys(INPUTS, Rule(_has_plain_form, _decompose_attention)),
}
