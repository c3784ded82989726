"""Multiply-accumulates of a graph.

In: the shapes of a graph, with sizes for its free dimensions. Out: counts for the operators in STANDARD and CONTRIB.
"""

from __future__ import annotations

import math

import onnx_ir as ir

from export.compiler.errors import Refused
from export.compiler.graph.attributes import attribute_int, attribute_string
from export.compiler.graph.shapes import Shapes

STANDARD = "Attention Conv ConvTranspose Einsum Gemm MatMul MatMulInteger QLinearMatMul"
CONTRIB = "DynamicQuantizeMatMul FusedMatMul GroupQueryAttention MatMulIntegerToFloat MatMulNBits MultiHeadAttention"


def graph_macs(shapes: Shapes) -> int:
    return sum(node_macs(shapes, node) for node in shapes.graph)


def is_multiplying(node: ir.Node) -> bool:
    return node.op_type in (CONTRIB if node.domain else STANDARD).split()


def node_macs(shapes: Shapes, node: ir.Node) -> int:
    """0 if the shapes are unknown."""
    if not is_multiplying(node):
        return 0
    try:
        return _macs(shapes, node)
    except Refused:
        return 0


def _macs(shapes: Shapes, node: ir.Node) -> int:
    sizes = [[shapes.nominal(dim) for dim in shapes.dims(value)] if value is not None else [] for value in node.inputs]
    out = math.prod(shapes.nominal(dim) for dim in shapes.dims(node.outputs[0]))
    match node.op_type:
        case "MatMul" | "MatMulInteger" | "QLinearMatMul" | "MatMulIntegerToFloat" | "DynamicQuantizeMatMul":
            return out * sizes[0][-1]
        case "MatMulNBits":
            return out * attribute_int(node, "K", 0)
        case "FusedMatMul":
            return out * sizes[0][-2 if attribute_int(node, "transA", 0) else -1]
        case "GroupQueryAttention":
            return 2 * out * (sizes[0][1] + (sizes[3][2] if len(sizes) > 3 and sizes[3] else 0))
        case "MultiHeadAttention":
            return 2 * out * (sizes[1] or sizes[0])[1]
        case "Gemm":
            return out * sizes[0][0 if attribute_int(node, "transA", 0) else 1]
        case "Conv":
            return out * math.prod(sizes[1][1:])
        case "ConvTranspose":
            return math.prod(sizes[0]) * math.prod(sizes[1][1:])
        case "Attention":  # scores, then the weighted sum of the values
            heads = attribute_int(node, "q_num_heads", 0)
            scores = math.prod(sizes[0]) * sizes[1][-2]
            return scores + (out if heads or len(sizes[0]) == 4 else 0) * sizes[1][-2]
        case _:
            terms = attribute_string(node, "equation", "").replace(" ", "").partition("->")[0].split(",")
            pairs = [pair for term, dims in zip(terms, sizes, strict=False) for pair in zip(term, dims, strict=False)]
            return math.prod(dict(pairs).values())
