"""Reorders the features of image patches as the image has them: the Transpose then copies contiguous runs of memory.

In: Reshape(Transpose(image)) that makes patches, whose readers are weights and norms. Out: the same outputs in less
time. For a permutation P of features:

    (x P) W = x (P W)        norm(x P; scale, bias) = norm(x; P scale, P bias) P

`b c (h p) (w q) -> b (h w) (p q c)`, einops' usual order, becomes `b (h w) (c p q)`.

Refuses nothing by name: the Reshape stays if another node sees the features' order, if a weight is no constant or too
large, or if the Transpose copies runs already.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from export.compiler.analyses.linear_layer_changes import shape_of
from export.compiler.graph.attributes import attribute_int, given, optional, permutation
from export.compiler.graph.constants import FLOATS, Array, Constants, doubles, is_constant
from export.compiler.graph.def_use import made_by, only_reader, readers
from export.compiler.graph.node_builder import nodes_before
from export.compiler.graph.symbolic_shapes import Dim, Shapes, product, same
from export.compiler.operators.table import NORMALISING

LARGEST = 1 << 24  # elements of a weight whose rows are permuted

FeatureConstant = tuple[ir.Node, int, int]  # a node, the input that is the constant, the constant's axis of features


def reorder_patch_features(shapes: Shapes, constants: Constants, node: ir.Node) -> ir.Value | None:
    """The new output of the Reshape `node`, after a change of its readers' constants; None if the graph stays."""
    transposed = given(node, 0)
    transpose = made_by(transposed, "Transpose")
    if node.op_type not in ("Reshape", "Flatten") or transpose is None or only_reader(transposed) is not node:
        return None
    source = given(transpose, 0)
    dims, features = shapes.dims(transposed), shapes.dims(node.outputs[0])[-1]
    perm, first = permutation(transpose, len(dims)), len(dims) - _axes_of_features(dims, features)
    order = [*perm[:first], *sorted(perm[first:])]
    last = len(perm) - 1
    if first == len(dims) or perm[-1] == last or order[-1] != last or same(shapes.dims(source)[last], 1):
        return None
    feature_constants = _feature_constants(shapes, node.outputs[0])
    if not feature_constants:
        return None
    sizes = [size for size in dims[first:] if isinstance(size, int)]
    inner_order = [perm.index(axis) - first for axis in order[first:]]
    new_order = np.arange(int(np.prod(sizes))).reshape(sizes).transpose(inner_order).ravel()
    for reader, position, axis in feature_constants:
        _permute(constants, reader, position, axis, new_order)
    nodes = nodes_before(constants, node)
    shape = ir.Shape([shapes.dims(source)[axis] for axis in order])
    reordered = nodes.add("Transpose", [source], shape, perm=order)
    inputs = [reordered, *node.inputs[1:]]
    return nodes.add(node.op_type, inputs, node.outputs[0].shape, **node.attributes)


def _axes_of_features(dims: Sequence[Dim], features: Dim) -> int:
    """How many of the last axes, at least two, the Reshape joins to the axis of features; 0 if unknown."""
    counts = range(2, len(dims) + 1) if isinstance(features, int) else ()
    return next((count for count in counts if same(product(dims[-count:]), features)), 0)


def _feature_constants(shapes: Shapes, value: ir.Value) -> list[FeatureConstant] | None:
    """The weights and norms behind `value` that must be permuted with its features; None if another node reads them."""
    if value.is_graph_output() or not readers(value):
        return None
    feature_constants: list[FeatureConstant] = []
    for use in value.uses():
        node, weight = use.node, optional(use.node, 1)
        if use.idx or node.domain or weight is None or not is_constant(weight) or weight.dtype not in FLOATS:
            return None
        if node.op_type == "MatMul" and shapes.rank(weight) == 2 and math.prod(shape_of(weight)) <= LARGEST:
            feature_constants.append((node, 1, 0))
        elif node.op_type in NORMALISING and attribute_int(node, "axis", -1) in (-1, shapes.rank(value) - 1):
            behind = _feature_constants(shapes, node.outputs[0])
            if behind is None or not all(map(is_constant, node.inputs[1:])) or len(node.outputs) > 1:
                return None
            feature_constants += [*((node, position, -1) for position in range(1, len(node.inputs))), *behind]
        else:
            return None
    return feature_constants


def _permute(constants: Constants, node: ir.Node, position: int, axis: int, order: Array) -> None:
    """Permutes an axis of a constant input. A scale that is a single number for all features stays."""
    weight = node.inputs[position]
    if weight is None or weight.dtype is None or (order == np.arange(order.size)).all():
        return
    shape = shape_of(weight)
    if shape and shape[axis] == order.size:
        permuted = constants.add_computed(
            lambda: np.take(doubles(weight), order, axis), shape, f"{weight.name}_order", weight.dtype
        )
        node.replace_input_with(position, permuted)
