"""Folds conditions on sizes: Equal and Where that compute the shape for a Reshape or an Expand.

In: a graph after shape inference. Out: the same graph, where the result of such a node follows without it:

    Where(Equal(sizes, -1), 1, sizes) = sizes

TorchScript's exporter writes this for `expand(-1, ...)`. A size is at least 0, so the condition is known.

Reads vectors whose elements shape inference knows as numbers or expressions, as in `x.shape[0] * 2`. A node stays if an
expression could be a difference of sizes, which may be negative, or if it is compared with a number that it may be: an
empty batch has the size 0.
"""

from __future__ import annotations

import re
from collections.abc import Set

import numpy as np
import onnx_ir as ir

from export.compiler.graph.constants import Constants, constant, integers, is_constant
from export.compiler.graph.node_builder import nodes_before
from export.compiler.graph.shapes import least
from export.compiler.operators.shape_inference import elements_of


def fold_size_conditions(graph: ir.Graph) -> bool:
    """Changes the graph in place, and returns whether it did."""
    constants, sizes, changed = Constants(graph), _sizes(graph), False
    for node in list(graph):
        output = node.outputs[0] if node.outputs else None
        if output is None or node.domain or not output.uses() or output.is_graph_output():
            continue
        new = None
        if node.op_type == "Equal":
            result = _equal(node, sizes)
            new = constants.add(np.array(result), output.name or "equal") if result is not None else None
        elif node.op_type == "Where":
            new = _where(node, constants)
        if new is not None:
            ir.convenience.replace_all_uses_with(output, new)
            changed = True
    return changed


def _sizes(graph: ir.Graph) -> set[str]:
    """The free sizes of the graph's values, as expressions: `batch`, `2*seq + 1`."""
    values = [*graph.inputs, *(value for node in graph for value in node.outputs)]
    return {str(dim) for value in values if value.shape is not None for dim in value.shape.dims}


def _is_size(expression: str, sizes: Set[str]) -> bool:
    """Whether an expression is a size, or made of sizes and numbers by + and *: then it is at least 0."""
    parts = re.split(r"[ *+()]+", expression)
    return expression in sizes or all(not part or part.isdecimal() or part in sizes for part in parts)


def _equal(node: ir.Node, known_sizes: Set[str]) -> list[bool] | None:
    """The result of an Equal between a vector of sizes and a constant; None if it is unknown."""
    for vector, other in (node.inputs, reversed(node.inputs)):
        sizes = elements_of(vector) if vector is not None else []
        numbers = integers(other) if sizes else None  # of other vectors the constant may be infinite
        if numbers is None:
            continue
        numbers = numbers * len(sizes) if len(numbers) == 1 else numbers
        if len(sizes) == len(numbers) and all(
            isinstance(size, int) or (number < least(size) and _is_size(str(size), known_sizes))
            for size, number in zip(sizes, numbers, strict=True)
        ):
            return [size == number for size, number in zip(sizes, numbers, strict=True)]
    return None


def _where(node: ir.Node, constants: Constants) -> ir.Value | None:
    """The result of a Where on vectors with a known condition: a Concat of the chosen elements. Else None."""
    condition = constant(node.inputs[0])
    choices = [value for value in node.inputs[1:] if value is not None]
    vectors = all(value.shape is not None and value.shape.rank() == 1 for value in choices)
    if condition is None or condition.ndim != 1 or len(choices) != 2 or not vectors:
        return None
    if any(value.shape is None or value.shape[0] != condition.size for value in choices):
        return None
    nodes, parts = nodes_before(constants, node), []
    for position, first in enumerate(condition):
        value = choices[0] if first else choices[1]
        if is_constant(value):
            parts.append(nodes.integers([(integers(value) or [])[position]]))
        else:
            parts.append(nodes.gather(value, nodes.integers([position])))
    return nodes.add("Concat", parts, axis=0)
