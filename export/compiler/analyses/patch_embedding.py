"""Follows tokens back to the patches or frames that a linear layer made them of.

In: tokens X (B, N, D) of a graph. Out: `Embedded`, or Refused: X = pad(P W) + T with patches P (B, M, F), where
constants stand before and after the M rows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from export.compiler.analyses.affine import constant_term
from export.compiler.analyses.batch_invariant import batch_invariant
from export.compiler.errors import Refused
from export.compiler.graph.attributes import attribute_int, given
from export.compiler.graph.constants import Array, constant
from export.compiler.graph.shapes import Shapes


@dataclass(frozen=True)
class Embedded:
    """`table` (N, D); rows `start` to `start + rows` are the patches'."""

    patches: ir.Value
    weight: Array
    table: Array
    start: int
    rows: int


def embedded(shapes: Shapes, tokens: ir.Value) -> Embedded:
    """Raises Refused for tokens of another origin."""
    node = tokens.producer()
    if node is None or node.domain or shapes.rank(tokens) != 3:
        raise Refused(tokens.name or "", "graph input", "expected tokens (batch, rows, features) of a linear layer")
    match node.op_type:
        case "MatMul":
            return _layer(shapes, node)
        case "Add":
            return _summed(shapes, node)
        case "Concat":
            return _joined(shapes, node)
    raise Refused.of(tokens, "makes the tokens and is no linear layer, sum or join")


def _layer(shapes: Shapes, node: ir.Node) -> Embedded:
    patches, weight = given(node, 0), constant(node.inputs[1])
    rows = shapes.static(patches, 1) if shapes.rank(patches) == 3 else None
    if weight is None or weight.ndim != 2 or rows is None:
        raise Refused.at(node, "expected a known number of rows by a weight")
    return Embedded(patches, weight, np.zeros((rows, weight.shape[1])), 0, rows)


def _summed(shapes: Shapes, node: ir.Node) -> Embedded:
    term = constant_term(shapes, node)
    if term is not None:
        inner = embedded(shapes, term[0])
        table = inner.table + term[1]
        if table.size == inner.table.size:
            return replace(inner, table=table.reshape(inner.table.shape))
    raise Refused.at(node, "expected a sum with a constant that all images share")


def _joined(shapes: Shapes, node: ir.Node) -> Embedded:
    parts = [(value, batch_invariant(shapes, value)) for value in node.inputs if value is not None]
    computed = [value for value, array in parts if array is None]
    if len(computed) != 1 or attribute_int(node, "axis", 0) not in (1, -2):
        raise Refused.at(node, "expected one part that is no constant, joined by rows")
    inner = embedded(shapes, computed[0])
    tables = [inner.table if array is None else array.reshape(-1, inner.table.shape[1]) for _, array in parts]
    before = next(position for position, (value, _) in enumerate(parts) if value is computed[0])
    start = inner.start + sum(len(table) for table in tables[:before])
    return replace(inner, table=np.concatenate(tables), start=start)
