"""Formulas of multiply-accumulates, for each operator that multiplies matrices.

In: the shapes of a graph and a node. Out: a number; free sizes count as `Shapes.nominal` takes them.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import onnx_ir as ir

from export.compiler.graph.attributes import attribute_int, einsum_letters, factor_axes
from export.compiler.graph.symbolic_shapes import Dim, Shapes

Macs = Callable[[Shapes, ir.Node], int]


def no_formula(shapes: Shapes, node: ir.Node) -> int:
    """The place of a formula for an operator that multiplies, but whose work nobody counts."""
    return 0


def _sizes(shapes: Shapes, value: ir.Value | None) -> list[int]:
    return [shapes.nominal(dim) for dim in shapes.dims(value)] if value is not None else []


def _inputs(shapes: Shapes, node: ir.Node) -> list[list[int]]:
    return [_sizes(shapes, value) for value in node.inputs]


def _out(shapes: Shapes, node: ir.Node) -> int:
    return math.prod(_sizes(shapes, node.outputs[0]))


def matrices(right: int) -> Macs:
    """The formula of a product of the first input and the input at the position `right`."""

    def count(shapes: Shapes, node: ir.Node) -> int:
        """Elements of the output times the length of the axis over which the product sums.

        The second factor is often a weight, whose axis has a known length where that of the first factor is free.
        """
        first, second = node.inputs[0], node.inputs[right]
        dims: list[Dim] = [shapes.dims(first)[-1]] if first is not None else []
        dims += [shapes.dims(second)[-2:][0]] if second is not None else []
        return _out(shapes, node) * shapes.nominal(next((dim for dim in dims if isinstance(dim, int)), dims[0]))

    return count


def filters(weight: int) -> Macs:
    """The formula of a convolution whose filters are the input at the position `weight`."""
    return lambda shapes, node: _out(shapes, node) * math.prod(_sizes(shapes, node.inputs[weight])[1:])


def filters_of_input(shapes: Shapes, node: ir.Node) -> int:
    """A transposed convolution, in which each pixel of the input meets all filters of its channel."""
    image, weight = _inputs(shapes, node)[:2]
    return math.prod(image) * math.prod(weight[1:])


def gemm(shapes: Shapes, node: ir.Node) -> int:
    """Gemm and FusedMatMul."""
    sizes = _sizes(shapes, node.inputs[0])
    return _out(shapes, node) * sizes[factor_axes(node, 0, len(sizes))[-1]]


def blocks(shapes: Shapes, node: ir.Node) -> int:
    """MatMulNBits, whose attribute K is the length of the axis over which it sums."""
    return _out(shapes, node) * attribute_int(node, "K", 0)


def recurrent(shapes: Shapes, node: ir.Node) -> int:
    """GRU, LSTM or RNN: each step multiplies the input and the previous state by matrices."""
    sizes = _inputs(shapes, node)
    return math.prod(sizes[0][:2]) * (math.prod(sizes[1]) + math.prod(sizes[2]))


def attention(shapes: Shapes, node: ir.Node) -> int:
    """The scores of queries and keys, then the weighted sums of the values."""
    sizes, heads = _inputs(shapes, node), attribute_int(node, "q_num_heads", 0)
    scores = math.prod(sizes[0]) * sizes[1][-2]
    return scores + (_out(shapes, node) if heads or len(sizes[0]) == 4 else 0) * sizes[1][-2]


def multi_head(shapes: Shapes, node: ir.Node) -> int:
    sizes = _inputs(shapes, node)
    return 2 * _out(shapes, node) * (sizes[1] or sizes[0])[1]


def projecting(shapes: Shapes, node: ir.Node) -> int:
    """Attention of com.microsoft: the projection to queries, keys and values, then attention to past and new tokens."""
    sizes = _inputs(shapes, node)
    past = sizes[4][3] if len(sizes) > 4 and sizes[4] else 0
    return math.prod(sizes[0]) * sizes[1][1] + 2 * _out(shapes, node) * (sizes[0][1] + past)


def grouped(shapes: Shapes, node: ir.Node) -> int:
    """GroupQueryAttention: attention to past and new tokens."""
    sizes = _inputs(shapes, node)
    return 2 * _out(shapes, node) * (sizes[0][1] + (sizes[3][2] if len(sizes) > 3 and sizes[3] else 0))


def einsum(shapes: Shapes, node: ir.Node) -> int:
    inputs = _inputs(shapes, node)
    named = zip(einsum_letters(node, [len(sizes) for sizes in inputs])[0], inputs, strict=False)
    return math.prod({letter: size for term, dims in named for letter, size in zip(term, dims, strict=False)}.values())
