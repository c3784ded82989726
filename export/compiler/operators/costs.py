"""Multiply-accumulates of a graph.

In: the shapes of a graph, with sizes for its free dimensions. Out: `Work`. Operators of UNCOUNTED multiply, too, but
have no formula here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import onnx_ir as ir

from export.compiler.errors import Refused
from export.compiler.graph.attributes import attribute_int, attribute_string
from export.compiler.graph.shapes import Dim, Shapes

STANDARD = (
    "Attention Conv ConvInteger ConvTranspose Einsum GRU Gemm LSTM MatMul MatMulInteger QLinearConv QLinearMatMul RNN"
)
CONTRIB = "DynamicQuantizeMatMul FusedMatMul GroupQueryAttention MatMulIntegerToFloat MatMulNBits MultiHeadAttention"
UNCOUNTED = (
    "Attention CausalConvWithState DFT DeformConv DynamicQuantizeLSTM LongformerAttention MoE QAttention QGemm QMoE "
    "STFT SparseAttention"
)


@dataclass(frozen=True)
class Work:
    """`macs`: of products whose sizes are known. `guessed`: of others, with unknown sizes taken for the longest.

    `uncounted` names the operators that `macs` lacks.
    """

    macs: int
    guessed: int = 0
    uncounted: tuple[str, ...] = ()

    @property
    def total(self) -> int:
        return self.macs + self.guessed


def graph_work(shapes: Shapes) -> Work:
    macs, guessed, uncounted = 0, 0, []
    for node in shapes.graph:
        if not is_multiplying(node):
            if node.op_type in UNCOUNTED.split():
                uncounted.append(_name(node))
        elif is_counted(shapes, node):
            macs += node_macs(shapes, node)
        else:
            guessed += node_macs(shapes, node)
            uncounted.append(_name(node))
    return Work(macs, guessed, tuple(uncounted))


def is_multiplying(node: ir.Node) -> bool:
    return node.op_type in (CONTRIB if node.domain else STANDARD).split()


def is_counted(shapes: Shapes, node: ir.Node) -> bool:
    """Whether the sizes of the product follow from those of the graph's inputs."""
    return all(map(shapes.is_sized, (*node.inputs, node.outputs[0] if node.outputs[0].name else None)))


def node_macs(shapes: Shapes, node: ir.Node) -> int:
    """0 if the shapes are unknown."""
    if not is_multiplying(node):
        return 0
    try:
        return _macs(shapes, node)
    except Refused:
        return 0


def _name(node: ir.Node) -> str:
    return f"{node.op_type} {next((value.name for value in node.outputs if value.name), node.name)}"


def _macs(shapes: Shapes, node: ir.Node) -> int:
    sizes = [[shapes.nominal(dim) for dim in shapes.dims(value)] if value is not None else [] for value in node.inputs]
    if node.op_type in ("LSTM", "GRU", "RNN"):  # of each step: the input and the state before it
        return math.prod(sizes[0][:2]) * (math.prod(sizes[1]) + math.prod(sizes[2]))
    out = math.prod(shapes.nominal(dim) for dim in shapes.dims(node.outputs[0]))
    match node.op_type:
        case "MatMul" | "MatMulInteger" | "MatMulIntegerToFloat" | "DynamicQuantizeMatMul":
            return out * _inner(shapes, node.inputs[0], node.inputs[1])
        case "QLinearMatMul":
            return out * _inner(shapes, node.inputs[0], node.inputs[3])
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
        case "Conv" | "ConvInteger":
            return out * math.prod(sizes[1][1:])
        case "QLinearConv":
            return out * math.prod(sizes[3][1:])
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


def _inner(shapes: Shapes, left: ir.Value | None, right: ir.Value | None) -> int:
    """The axis over which a product sums; a weight knows it where the other factor does not."""
    dims: list[Dim] = [shapes.dims(left)[-1]] if left is not None else []
    dims += [shapes.dims(right)[-2:][0]] if right is not None else []
    return shapes.nominal(next((dim for dim in dims if isinstance(dim, int)), dims[0]))
