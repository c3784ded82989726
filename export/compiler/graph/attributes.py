"""Attributes and optional inputs of nodes. Older opsets keep axes in attributes, newer opsets in inputs."""

from __future__ import annotations

import onnx_ir as ir

from export.compiler.errors import Refused
from export.compiler.graph.constants import integers


def optional(node: ir.Node, position: int) -> ir.Value | None:
    """An input; None if the node lacks it."""
    return node.inputs[position] if position < len(node.inputs) else None


def given(node: ir.Node, position: int) -> ir.Value:
    """Raises Refused if the input is missing."""
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
    """None if absent or unknown."""
    given = attribute_ints(node, "axes")
    return integers(optional(node, 1)) if given is None else given


def permutation(node: ir.Node, rank: int) -> list[int]:
    return attribute_ints(node, "perm") or list(range(rank))[::-1]


def mixed_axes(node: ir.Node, rank: int) -> range:
    """Over which a Softmax sums: before opset 13 all axes from one on."""
    axis = attribute_int(node, "axis", 1 if opset(node) < 13 else -1) % rank
    return range(axis, rank if opset(node) < 13 else axis + 1)


def is_padded(node: ir.Node) -> bool:
    """Of a convolution or a pool."""
    plain = attribute_string(node, "auto_pad", "NOTSET") in ("NOTSET", "VALID")
    return not plain or any(attribute_ints(node, "pads") or [])


def reads_shape_alone(node: ir.Node) -> bool:
    return node.domain == "" and node.op_type in ("Shape", "Size")


def opset(node: ir.Node) -> int:
    graph = node.graph
    return graph.opset_imports.get("", 1) if graph is not None else 1


def attends_to_all(node: ir.Node) -> bool:
    """Whether every query sees every key, apart from the mask."""
    return not attribute_int(node, "is_causal", 0) and not has_window(node)


def has_window(node: ir.Node) -> bool:
    return {attribute_int(node, f"{side}_window_size", -1) for side in ("left", "right")} != {-1}
