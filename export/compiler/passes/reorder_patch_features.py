"""Patches are cut in the order of their picture's elements: the Transpose then copies whole runs of memory.

In: a Reshape that joins turned axes to the features of patches. Out: the same answers in less time. For a permutation P
of features, W and norms as they are:

    (x P) W = x (P W)        norm(x P; scale, bias) = norm(x; P scale, P bias) P

`b c (h p) (w q) -> b (h w) (p q c)`, einops' usual order, becomes `b (h w) (c p q)`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import onnx_ir as ir

from export.compiler.graph.attributes import attribute_int, given, optional, permutation
from export.compiler.graph.constants import FLOATS, Array, Constants, doubles, is_constant
from export.compiler.graph.def_use import made_by, only_reader, readers
from export.compiler.graph.node_builder import nodes_before
from export.compiler.graph.shapes import Dim, Shapes, product, same
from export.compiler.operators.table import NORMALISING

LARGEST = 1 << 24  # elements of a weight whose rows change places

Held = tuple[ir.Node, int, int]  # a node, the place of its constant, the constant's axis of features


def reorder_patch_features(shapes: Shapes, constants: Constants, node: ir.Node) -> ir.Value | None:
    """What takes the place of the Reshape `node`, whose readers' constants change; None if it stays."""
    turned = given(node, 0)
    turn = made_by(turned, "Transpose")
    if node.op_type not in ("Reshape", "Flatten") or turn is None or only_reader(turned) is not node:
        return None
    source = given(turn, 0)
    dims, wide = shapes.dims(turned), shapes.dims(node.outputs[0])[-1]
    perm, joined = permutation(turn, len(dims)), _joined(dims, wide)
    order = [*perm[: len(dims) - joined], *sorted(perm[len(dims) - joined :])]
    last = len(perm) - 1
    if not joined or perm[-1] == last or order[-1] != last or same(shapes.dims(source)[last], 1):
        return None
    held = list(_held(shapes, node.outputs[0]) or ())
    if not held:
        return None
    sizes = [size for size in dims[len(dims) - joined :] if isinstance(size, int)]
    inner = [perm.index(axis) - (len(dims) - joined) for axis in order[len(dims) - joined :]]
    places = np.arange(int(np.prod(sizes))).reshape(sizes).transpose(inner).ravel()
    for reader, position, axis in held:
        _move(constants, reader, position, axis, places)
    nodes = nodes_before(constants, node)
    shape = ir.Shape([shapes.dims(source)[axis] for axis in order])
    moved = nodes.add("Transpose", [source], turned.dtype, {"perm": order}, shape)
    return nodes.add(node.op_type, [moved, *node.inputs[1:]], turned.dtype, node.attributes, node.outputs[0].shape)


def _joined(dims: Sequence[Dim], wide: Dim) -> int:
    """The number of last axes, at least two, whose elements are the features; 0 if unknown."""
    counts = range(2, len(dims) + 1) if isinstance(wide, int) else ()
    return next((count for count in counts if same(product(dims[-count:]), wide)), 0)


def _held(shapes: Shapes, value: ir.Value) -> Iterator[Held] | None:
    """The constants along the features of `value` behind it; None if another reader sees their order."""
    if value.is_graph_output() or not readers(value):
        return None
    found: list[Held] = []
    for use in value.uses():
        node, weight = use.node, optional(use.node, 1)
        if use.idx or node.domain or weight is None or not is_constant(weight) or weight.dtype not in FLOATS:
            return None
        if node.op_type == "MatMul" and shapes.rank(weight) == 2 and doubles(weight).size <= LARGEST:
            found.append((node, 1, 0))
        elif node.op_type in NORMALISING and attribute_int(node, "axis", -1) in (-1, shapes.rank(value) - 1):
            behind = _held(shapes, node.outputs[0])
            if behind is None or not all(map(is_constant, node.inputs[1:])) or len(node.outputs) > 1:
                return None
            found += [*((node, position, -1) for position in range(1, len(node.inputs))), *behind]
        else:
            return None
    return iter(found)


def _move(constants: Constants, node: ir.Node, position: int, axis: int, places: Array) -> None:
    weight = node.inputs[position]
    if weight is None or weight.dtype is None or (places == np.arange(places.size)).all():
        return
    shape = doubles(weight).shape
    if shape and shape[axis] == places.size:  # of a scale for all features there is one number
        made = constants.add_computed(
            lambda: np.take(doubles(weight), places, axis), shape, f"{weight.name}_order", weight.dtype
        )
        node.replace_input_with(position, made)
