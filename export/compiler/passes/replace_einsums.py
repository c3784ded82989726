"""Replaces an Einsum of two operands by a MatMul, which every pass reads.

In: a graph with inferred shapes. Out: the same outputs. Keras writes its projections and einops users write their
attentions in these forms:

    Einsum<abc,cde->abde>(x, W)     = Reshape(MatMul(x, Reshape(W)))
    Einsum<bihd,bjhd->bhij>(q, k)   = MatMul(Transpose(q), Transpose(k))

Refuses nothing by name. An Einsum stays if it repeats or broadcasts an axis, sums an axis of one operand alone, sums
none, or if an operand has no axis of its own; and if several axes would become one of an unknown size.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import onnx_ir as ir

from export.compiler.graph.constants import Constants, is_constant
from export.compiler.graph.def_use import made_by
from export.compiler.graph.node_builder import Nodes, nodes_before
from export.compiler.graph.symbolic_shapes import Shapes
from export.compiler.operators.demand_rules import einsum_terms


def replace_einsums(graph: ir.Graph) -> bool:
    """In place; the Einsums stay in the graph, and nothing reads them. Whether there were such."""
    shapes, constants, replaced = Shapes(graph), Constants(graph), False
    for node in list(graph):
        out, operands = node.outputs[0], [value for value in node.inputs if value is not None]
        if made_by(out, "Einsum") is None or len(operands) != 2 or any(value.shape is None for value in operands):
            continue
        terms, letters = einsum_terms(shapes, node) or ([], "")
        if is_constant(operands[0]):  # a weight is the right operand of a MatMul
            operands, terms = operands[::-1], terms[::-1]
        product = _product(shapes, nodes_before(constants, node), operands, terms, letters) if terms else None
        if product is not None:
            constants.replace(out, product, "einsum")
            replaced = True
    return replaced


def _product(
    shapes: Shapes, nodes: Nodes, operands: Sequence[ir.Value], terms: Sequence[str], letters: str
) -> ir.Value | None:
    """The MatMul, with its axes in the order of `letters`; None if the Einsum stays."""
    left, right = terms
    batch = [letter for letter in left if letter in right and letter in letters]
    summed = [letter for letter in left if letter in right and letter not in letters]
    rows = [letter for letter in left if letter not in right]
    columns = [letter for letter in right if letter not in left]
    if not (summed and rows and columns) or len(batch + rows + columns) != len(letters):
        return None
    sizes = {
        letter: size for letter, size in zip(right, shapes.dims(operands[1]), strict=True) if isinstance(size, int)
    }
    joins = len(summed + columns) > 2
    if (batch and len(rows) > 1) or (joins and (batch or len(sizes) < len(right))):
        return None
    first = nodes.transpose(operands[0], [left.index(letter) for letter in batch + rows + summed])
    second = nodes.transpose(operands[1], [right.index(letter) for letter in batch + summed + columns])
    if joins:
        inner, outer = (prod(sizes[letter] for letter in group) for group in (summed, columns))
        second = nodes.reshape(second, [inner, outer])
        if len(summed) > 1:
            first = nodes.reshape(first, [*[0] * len(rows), inner])
    product = nodes.add("MatMul", [first, second])
    if len(columns) > 1:
        product = nodes.reshape(product, [*[0] * len(rows), *(sizes[letter] for letter in columns)])
    return nodes.transpose_back(product, [letters.index(letter) for letter in batch + rows + columns])
