"""Recognises a patch embedding: tokens that a linear layer makes of patches or frames, plus constants.

In: tokens X (B, N, D) of a graph. Out: a `PatchEmbedding` with X = pad(P W) + T for patches P (B, M, F), or Refused.
pad adds N - M rows of zeros before and after, where T holds class tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from export.compiler.analyses.affine import constant_term
from export.compiler.analyses.batch_invariant import concat_as_padding
from export.compiler.analyses.linear_layer_changes import matrix
from export.compiler.errors import Refused
from export.compiler.graph.attributes import given
from export.compiler.graph.constants import Array
from export.compiler.graph.symbolic_shapes import Shapes


@dataclass(frozen=True)
class PatchEmbedding:
    """X = pad(patches @ weight) + table, with float64 arrays `weight` (F, D) and `table` (N, D).

    The patches are the tokens `start` to `start + rows` - 1.
    """

    patches: ir.Value
    weight: Array
    table: Array
    start: int
    rows: int


def patch_embedding(shapes: Shapes, tokens: ir.Value) -> PatchEmbedding:
    """Raises Refused if the tokens are no sum or Concat of such a layer and constants."""
    node = tokens.producer()
    if node is None or node.domain or shapes.rank(tokens) != 3:
        raise Refused(tokens.name or "", "graph input", "expected tokens (batch, rows, features) of a linear layer")
    match node.op_type:
        case "MatMul":
            return _layer(shapes, node)
        case "Add":
            return _summed(shapes, node)
        case "Concat":
            return _concatenated(shapes, node)
    raise Refused.of(tokens, "makes the tokens and is no linear layer, sum or join")


def _layer(shapes: Shapes, node: ir.Node) -> PatchEmbedding:
    patches, weight = given(node, 0), matrix(node)
    rows = shapes.static(patches, 1) if shapes.rank(patches) == 3 else None
    if weight is None or rows is None:
        raise Refused.at(node, "expected a known number of rows by a weight")
    return PatchEmbedding(patches, weight, np.zeros((rows, weight.shape[1])), 0, rows)


def _summed(shapes: Shapes, node: ir.Node) -> PatchEmbedding:
    term = constant_term(shapes, node)
    if term is not None:
        inner = patch_embedding(shapes, term[0])
        table = inner.table + term[1]
        if table.size == inner.table.size:
            return replace(inner, table=table.reshape(inner.table.shape))
    raise Refused.at(node, "expected a sum with a constant that all images share")


def _concatenated(shapes: Shapes, node: ir.Node) -> PatchEmbedding:
    padding = concat_as_padding(shapes, node)
    if padding is None or padding.axis != 1:
        raise Refused.at(node, "expected one part that is no constant, joined by rows")
    inner = patch_embedding(shapes, padding.value)
    table = padding.table[0] + np.pad(inner.table, ((padding.before, padding.after), (0, 0)))
    return replace(inner, table=table, start=inner.start + padding.before)
