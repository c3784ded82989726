"""Attributes and optional inputs of nodes. Older opsets keep axes in attributes, newer opsets in inputs."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from export.compiler.errors import Refused
from export.compiler.graph.constants import integers


def optional(node: ir.Node, position: int) -> ir.Value | None:
    """The input at `position`; None if the node lacks it."""
    return node.inputs[position] if position < len(node.inputs) else None


def given(node: ir.Node, position: int) -> ir.Value:
    """The input at `position`. Raises Refused if the node lacks it."""
    value = optional(node, position)
    if value is None:
        raise Refused.at(node, f"expected an input {position}, found none")
    return value


def attribute_int(node: ir.Node, name: str, default: int) -> int:
    return node.attributes[name].as_int() if name in node.attributes else default


def attribute_float(node: ir.Node, name: str, default: float) -> float:
    return node.attributes[name].as_float() if name in node.attributes else default


def attribute_string(node: ir.Node, name: str, default: str) -> str:
    return node.attributes[name].as_string() if name in node.attributes else default


def attribute_ints(node: ir.Node, name: str) -> list[int] | None:
    return [int(number) for number in node.attributes[name].as_ints()] if name in node.attributes else None


def axes_of(node: ir.Node) -> list[int] | None:
    """The axes that the node names, in its attribute or as its second input.

    None if it names none, or if they are computed when the graph runs.
    """
    axes = attribute_ints(node, "axes")
    return integers(optional(node, 1)) if axes is None else axes


def permutation(node: ir.Node, rank: int) -> list[int]:
    """Of a Transpose: for each axis of the output the axis of the input. By default the axes are reversed."""
    return attribute_ints(node, "perm") or list(range(rank))[::-1]


def mixed_axes(node: ir.Node, rank: int) -> range:
    """The axes over which a Softmax sums: before opset 13 all axes from `axis` on, later `axis` alone."""
    axis = attribute_int(node, "axis", 1 if opset(node) < 13 else -1) % rank
    return range(axis, rank if opset(node) < 13 else axis + 1)


def mixes_last_axis(node: ir.Node, rank: int) -> bool:
    """Whether a Softmax sums over its last axis alone; before opset 13 it may flatten several axes."""
    return mixed_axes(node, rank) == range(rank - 1, rank)


def is_padded(node: ir.Node) -> bool:
    """Whether a convolution or a pool pads its input."""
    automatic = attribute_string(node, "auto_pad", "NOTSET") not in ("NOTSET", "VALID")
    return automatic or any(attribute_ints(node, "pads") or [])


def reads_shape_alone(node: ir.Node) -> bool:
    """Whether the node reads the shape of its input and none of its elements."""
    return node.domain == "" and node.op_type in ("Shape", "Size")


def opset(node: ir.Node) -> int:
    """The version of ONNX's standard operators in the node's graph; 1 for a node outside a graph."""
    graph = node.graph
    return graph.opset_imports.get("", 1) if graph is not None else 1


def has_window(node: ir.Node) -> bool:
    """Whether each query of an Attention sees only the keys near its own position."""
    return {attribute_int(node, f"{side}_window_size", -1) for side in ("left", "right")} != {-1}


def factor_axes(node: ir.Node, position: int, rank: int) -> list[int]:
    """The order of axes in which a FusedMatMul multiplies its input 0 or 1: (batch, ..., rows, columns)."""
    axes, factor = [*range(rank)], "AB"[position]
    if attribute_int(node, f"transBatch{factor}", 0):
        axes.insert(rank - 2, axes.pop(0))
    if attribute_int(node, f"trans{factor}", 0):
        axes[-2:] = axes[:-3:-1]
    return axes


def einsum_letters(node: ir.Node, ranks: Sequence[int]) -> tuple[list[str], str]:
    """The letters of the axes of each operand of an Einsum, and of the output's. `ranks`: of the operands.

    The characters 0, 1, ... stand for the axes of an ellipsis, which has as many axes in every operand.
    """
    left, _, right = attribute_string(node, "equation", "").replace(" ", "").partition("->")
    hidden = [rank - len(term) + 3 for term, rank in zip(left.split(","), ranks, strict=False) if "." in term]
    ellipsis = "".join(map(chr, range(max(hidden, default=0))))
    *terms, right = (term.replace("...", ellipsis) for term in (*left.split(","), right))
    return terms, right
