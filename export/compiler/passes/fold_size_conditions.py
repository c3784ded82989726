"""Evaluates choices in the sizes of a Reshape or an Expand.

In: a graph after shape inference. Out: the same without Equal and Where on vectors of sizes. The older exporter writes
`expand(-1, ...)` as Where(Equal(sizes, -1), 1, sizes); a size is at least 1, so the answer is known. A difference of
sizes may be less.
"""

from __future__ import annotations

import re
from collections.abc import Set

import numpy as np
import onnx_ir as ir

from export.compiler.graph.constants import Constants, constant, integers, is_constant
from export.compiler.graph.node_builder import nodes_before
from export.compiler.operators.shape_inference import elements_of


def fold_size_conditions(graph: ir.Graph) -> bool:
    constants, sizes, changed = Constants(graph), _sizes(graph), False
    for node in list(graph):
        output = node.outputs[0] if node.outputs else None
        if output is None or node.domain or not output.uses() or output.is_graph_output():
            continue
        new = None
        if node.op_type == "Equal":
            answer = _compare(node, sizes)
            new = constants.add(np.array(answer), output.name or "equal") if answer is not None else None
        elif node.op_type == "Where":
            new = _choose(node, constants)
        if new is not None:
            ir.convenience.replace_all_uses_with(output, new)
            changed = True
    return changed


def _sizes(graph: ir.Graph) -> set[str]:
    """The free sizes of the graph's values, as expressions."""
    values = [*graph.inputs, *(value for node in graph for value in node.outputs)]
    return {str(dim) for value in values if value.shape is not None for dim in value.shape.dims}


def _is_size(expression: str, sizes: Set[str]) -> bool:
    """Whether it is a size, or sums and products of sizes and numbers."""
    parts = re.split(r"[ *+()]+", expression)
    return expression in sizes or all(not part or part.isdecimal() or part in sizes for part in parts)


def _compare(node: ir.Node, known_sizes: Set[str]) -> list[bool] | None:
    """Whether each size equals the number opposite; None if unknown."""
    for sizes, other in (node.inputs, reversed(node.inputs)):
        known = elements_of(sizes) if sizes is not None else []
        numbers = integers(other) if known else None  # only those compare with sizes: others may be infinite
        if numbers is None:
            continue
        numbers = numbers * len(known) if len(numbers) == 1 else numbers
        if len(known) == len(numbers) and all(
            isinstance(size, int) or (number < 1 and _is_size(str(size), known_sizes))
            for size, number in zip(known, numbers, strict=True)
        ):
            return [size == number for size, number in zip(known, numbers, strict=True)]
    return None


def _choose(node: ir.Node, constants: Constants) -> ir.Value | None:
    """The result of a Where on vectors with a known condition, else None."""
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
    return nodes.add("Concat", parts, node.outputs[0].dtype, {"axis": 0})
