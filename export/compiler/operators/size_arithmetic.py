"""Computes with the sizes that a graph holds in vectors of integers, such as [batch, tokens, 768] for a Reshape.

The library onnx_shape_inference does this. These functions correct its answers where it computes a wrong size, or none.
In: the library's context, and a node that the library has seen. Out: the elements of the node's output, in the context.
"""

from __future__ import annotations

import re

import numpy as np
import onnx_ir as ir
from onnx_shape_inference import ShapeInferenceContext

from export.compiler.graph.attributes import attribute_int
from export.compiler.graph.constants import constant
from export.compiler.graph.symbolic_shapes import WHOLE_NUMBERS, Dim, least, number, product, same, slices

KEPT_BY_CASTS = {*WHOLE_NUMBERS, ir.DataType.FLOAT, ir.DataType.DOUBLE}  # dtypes that hold all sizes


def cast(context: ShapeInferenceContext, node: ir.Node) -> None:
    """A Cast to bool, or to a number of few bits, may change a size. The library keeps the size."""
    out = node.outputs[0]
    if out.dtype not in KEPT_BY_CASTS and (elements := context.get_symbolic_value(out)):
        _set_elements(context, out, [context.new_symbolic_dim() for _ in elements])


def gather(context: ShapeInferenceContext, node: ir.Node) -> None:
    """Takes rows of sizes from a table with several axes. The library takes single elements in their place."""
    table, indices = node.inputs[0], constant(node.inputs[1])
    if table is None or table.shape is None or table.shape.rank() < 2 or indices is None:
        return
    elements = context.get_symbolic_value(table) or []
    if elements and product(table.shape.dims) == len(elements):
        rows = np.arange(len(elements)).reshape(table.shape.numpy())
        chosen = rows.take(indices, attribute_int(node, "axis", 0)).ravel()
        _set_elements(context, node.outputs[0], [elements[place] for place in chosen])


def cut(context: ShapeInferenceContext, node: ir.Node) -> None:
    """Cuts vectors of sizes. The library does not know PyTorch's end of [::-1], and drops the last element."""
    source, cuts = node.inputs[0], slices(node, 1)
    elements = context.get_symbolic_value(source) if source is not None else None
    if elements is not None and cuts and source is not None and source.shape is not None and source.shape.rank() == 1:
        _set_elements(context, node.outputs[0], elements[slice(*cuts[0])])


def minimum(context: ShapeInferenceContext, node: ir.Node) -> None:
    """Names the minimum of a number and a free size; the library does not."""
    operands = _operands(context, node)
    numbers, sizes = [[size for size in operands if isinstance(size, int) is is_int] for is_int in (True, False)]
    if len(node.inputs) == 2 and len(numbers) == len(sizes) == 1:
        context.set_symbolic_value(node.outputs[0], [ir.SymbolicDim(f"Min({numbers[0]}, {sizes[0]})")])


def all_multiplied(context: ShapeInferenceContext, node: ir.Node) -> None:
    """ReduceProd of a vector of sizes, as tf2onnx joins axes for a Reshape. The library does not compute it."""
    source, out = node.inputs[0], node.outputs[0]
    elements = context.get_symbolic_value(source) if source is not None else None
    is_vector = source is not None and source.shape is not None and source.shape.rank() == 1
    if elements and is_vector and out.shape is not None and product(out.shape.dims) == 1:
        _set_elements(context, out, [product(elements)])


def one_hot(context: ShapeInferenceContext, node: ir.Node) -> None:
    """[1, n, 1] of 1 and n, as TorchScript exports `repeat_interleave(n, dim=1)`. The library knows no elements."""
    indices, depth, values = node.inputs
    place, count = constant(indices), constant(depth)
    pair = context.get_symbolic_value(values) if values is not None else None
    if place is not None and count is not None and place.size == count.size == 1 and pair and len(pair) == 2:
        chosen, sizes = int(place.item()), int(count.item())
        wanted = {chosen, chosen + sizes}  # an index below 0 counts from the end
        _set_elements(context, node.outputs[0], [pair[index in wanted] for index in range(sizes)])


def quotient(context: ShapeInferenceContext, node: ir.Node) -> None:
    """batch * n divided by batch is n: `mask.view(batch, -1)` is exported so. The library divides only numbers."""
    operands = _operands(context, node)
    if len(operands) == 2 and isinstance(operands[0], ir.SymbolicDim) and operands[1] != 0:
        quotient = operands[0] // operands[1]
        if same(quotient * operands[1], operands[0]):
            context.set_symbolic_value(node.outputs[0], [number(quotient)])


def float_quotient(context: ShapeInferenceContext, node: ir.Node) -> None:
    """6.0 / 4.0 is no integer; the library divides as integers."""
    out = node.outputs[0]
    if out.dtype not in WHOLE_NUMBERS and (elements := context.get_symbolic_value(out)):
        _set_elements(
            context, out, [context.new_symbolic_dim() if isinstance(size, int) else size for size in elements]
        )


def difference(context: ShapeInferenceContext, node: ir.Node) -> None:
    """n - n is 0: a decoder computes so where its queries begin among the keys. The library does not see it."""
    operands = _operands(context, node)
    if len(operands) == 2 and same(*operands):
        context.set_symbolic_value(node.outputs[0], [0])


def equal(context: ShapeInferenceContext, node: ir.Node) -> None:
    """Sizes are at least 0, and so no -1: TorchScript asks that for `expand(-1, ...)`. The library compares nothing.

    Elements may also be differences of sizes, which may be negative. Of other vectors the constant may be infinite.
    """
    left, right = (context.get_symbolic_value(value) if value is not None else None for value in node.inputs)
    if not left or not right or node.outputs[0].shape is None:
        return
    count = max(len(left), len(right))
    pairs = [*zip(left * (count // len(left)), right * (count // len(right)), strict=False)]
    known = [_are_equal(node, *pair) for pair in pairs]
    if len(pairs) == count and None not in known and node.outputs[0].shape.rank() == 1:
        node.outputs[0].const_value = ir.tensor(np.array(known, np.bool_))


def _are_equal(node: ir.Node, left: Dim, right: Dim) -> bool | None:
    """None if that is unknown, as of a number that a size may be: an empty batch has the size 0."""
    size, wanted = (left, right) if isinstance(right, int) else (right, left)
    if isinstance(size, int) or not isinstance(wanted, int):
        return size == wanted if isinstance(size, int) and isinstance(wanted, int) else None
    return False if wanted < least(size) and _is_size(node, str(size)) else None


def _is_size(node: ir.Node, expression: str) -> bool:
    """Whether an expression is a size of the graph, or made of such and numbers by + and *: then it is at least 0."""
    graph = node.graph
    values = [*graph.inputs, *(value for other in graph for value in other.outputs)] if graph is not None else []
    sizes = {str(dim) for value in values if value.shape is not None for dim in value.shape.dims}
    parts = re.split(r"[ *+()]+", expression)
    return expression in sizes or all(not part or part.isdecimal() or part in sizes for part in parts)


def where(context: ShapeInferenceContext, node: ir.Node) -> None:
    """The elements that a known condition chooses of vectors of sizes.

    The condition may be longer than both vectors. The library gives the output as many elements as they have.
    """
    condition, *choices = node.inputs
    out = node.outputs[0]
    first, second = (context.get_symbolic_value(value) if value is not None else None for value in choices)
    if not first or not second or out.shape is None:
        return
    known, count = constant(condition), product(out.shape.dims)
    if known is not None and known.ndim == out.shape.rank() == 1 and {len(first), len(second)} <= {1, known.size}:
        pairs = zip(first * (known.size // len(first)), second * (known.size // len(second)), strict=True)
        chosen = [left if flag else right for flag, (left, right) in zip(known, pairs, strict=True)]
        _set_elements(context, out, chosen)
    elif isinstance(count, int) and count != len(context.get_symbolic_value(out) or [0] * count):
        _set_elements(context, out, [context.new_symbolic_dim() for _ in range(count)])


def _set_elements(context: ShapeInferenceContext, value: ir.Value, elements: list[Dim]) -> None:
    """Replaces the elements, and the constant that the library made of them."""
    value.const_value = None
    context.set_symbolic_value(value, elements)


def _operands(context: ShapeInferenceContext, node: ir.Node) -> list[Dim]:
    """The inputs that are a single known number or size; other inputs are left out."""
    vectors = [context.get_symbolic_value(value) if value is not None else None for value in node.inputs]
    return [vector[0] for vector in vectors if vector is not None and len(vector) == 1]
