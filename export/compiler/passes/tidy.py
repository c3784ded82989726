"""Small rules that save no multiplication but time: moves that cancel, sums of constants, a class token's row.

In: a prepared graph, after the passes that multiply less. Out: the same outputs:

    Reshape(Reshape(x)) = Reshape(x)                   Transpose(Transpose(x)) = Transpose(x), or x
    Transpose(x) = Reshape(x), if only axes of size 1 change places
    Squeeze(Transpose(x)) = Transpose(Squeeze(x))      x[0] = Squeeze(x), if it has one row
    (x + a) + b = x + (a + b)                          pad(x + a) + b = pad(x) + (pad(a) + b)
    [t; x] + b = pad(x) + ([t; 0] + b)                 for a token t that all images share
    (x P) W = x (P W)                                  for an order P of features, see `reorder_patch_features`

`RULES` has the rules by the operator that they end at. A rule that does not apply leaves its node.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from export.compiler.analyses.affine import constant_term
from export.compiler.analyses.batch_invariant import batch_invariant
from export.compiler.errors import Refused, Site
from export.compiler.graph.attributes import attribute_int, attribute_string, given, opset, permutation
from export.compiler.graph.constants import UNROUNDED, Array, Constants, integers
from export.compiler.graph.def_use import made_by, made_of, only_reader
from export.compiler.graph.node_builder import nodes_before
from export.compiler.graph.shapes import Dim, Shapes, same, same_shape
from export.compiler.operators.table import RESHAPES
from export.compiler.passes.drop_unread import refresh
from export.compiler.passes.outcome import Outcome
from export.compiler.passes.reorder_patch_features import reorder_patch_features
from export.compiler.passes.squeeze_single_row import squeeze_single_row

LARGEST_TABLE = 1 << 20  # elements of a sum of constants
PADS_AS_INPUT = 11  # opset


def tidy(model: ir.Model, sizes: Mapping[str, int]) -> Outcome:
    sites: list[Site] = []
    while done := _sweep(Tidying(model.graph, sizes)):
        sites += done
        refresh(model)
    return Outcome(tuple(sites))


def _sweep(tidying: Tidying) -> list[Site]:
    sites = []
    for node in list(tidying.graph):
        out = node.outputs[0]
        for name, rule in RULES.get(node.op_type, {}).items() if not node.domain else ():
            try:
                new = rule(tidying, node)
            except Refused:  # a rank is unknown, or an input is missing
                new = None
            if new is not None:
                sites.append(Site(out.name or "", node.op_type, name))
                tidying.constants.replace(out, new, "tidied")
                break
    return sites


class Tidying:
    def __init__(self, graph: ir.Graph, sizes: Mapping[str, int]) -> None:
        self.graph, self.shapes, self.constants = graph, Shapes(graph, sizes), Constants(graph)

    def node(self, at: ir.Node, operator: str, inputs: Sequence[ir.Value], **attributes: list[int]) -> ir.Value:
        """Instead of `at`, whose output it has in shape and type."""
        like = at.outputs[0]
        return nodes_before(self.constants, at).add(operator, inputs, like.dtype, attributes, like.shape)

    def squeezed(self, at: ir.Node, source: ir.Value, axes: Sequence[int]) -> ir.Value:
        """`source` without axes of size 1."""
        new = nodes_before(self.constants, at).squeeze(source, axes)
        new.shape = ir.Shape([dim for axis, dim in enumerate(source.shape or ()) if axis not in axes])
        return new

    def reshaped(self, at: ir.Node, source: ir.Value) -> ir.Value | None:
        """`source` in the shape of `at`'s output; None if a size is unknown, unless `at` itself takes it for the rest:
        without elements there is no rest.
        """
        before, after = self.shapes.dims(source), self.shapes.dims(at.outputs[0])
        if same_shape(before, after) and not at.outputs[0].is_graph_output():
            return source
        sizes = [_size(before, axis, dim) for axis, dim in enumerate(after)]
        target = integers(at.inputs[1]) if at.op_type == "Reshape" else None
        if sizes.count(-1) > (1 if -1 in (target or []) else 0):
            return None
        return self.node(at, "Reshape", [source, self.constants.add_integers(sizes, "shape")])

    def term(self, node: ir.Node) -> tuple[ir.Value, Array] | None:
        """Of a sum with a constant: the other term, of the sum's shape, and the constant with all axes."""
        return constant_term(self.shapes, node) if node.outputs[0].dtype in UNROUNDED else None

    def summed(self, at: ir.Node, value: ir.Value, array: Array) -> ir.Value | None:
        if array.size > LARGEST_TABLE:
            return None
        while array.ndim > 1 and array.shape[0] == 1 and array.ndim >= self.shapes.rank(value):
            array = array[0]
        return self.node(at, "Add", [value, self.constants.add(array, f"{at.outputs[0].name}_sum", value.dtype)])


def _size(before: Sequence[Dim], axis: int, dim: Dim) -> int:
    """As Reshape writes it: 0 copies the source's size of the axis, which may be 0."""
    if isinstance(dim, int):
        return dim
    return 0 if axis < len(before) and same(before[axis], dim) else -1


def _reshape_of_reshape(tidying: Tidying, node: ir.Node) -> ir.Value | None:
    source = made_of(node.inputs[0], *RESHAPES)
    return tidying.reshaped(node, source) if source is not None else None


def _ones_move(tidying: Tidying, node: ir.Node) -> ir.Value | None:
    source = given(node, 0)
    dims = tidying.shapes.dims(source)
    wide = [axis for axis in permutation(node, len(dims)) if not same(dims[axis], 1)]
    return tidying.reshaped(node, source) if wide == sorted(wide) else None


def _transpose_of_transpose(tidying: Tidying, node: ir.Node) -> ir.Value | None:
    maker = made_by(node.inputs[0], "Transpose")
    if maker is None:
        return None
    source = given(maker, 0)
    rank = tidying.shapes.rank(source)
    first, second = permutation(maker, rank), permutation(node, rank)
    order = [first[axis] for axis in second]
    if order == sorted(order) and not node.outputs[0].is_graph_output():
        return source
    return tidying.node(node, "Transpose", [source], perm=order)


def _squeeze_of_transpose(tidying: Tidying, node: ir.Node) -> ir.Value | None:
    """Axes of size 1 go before a transpose that leaves the first and the last axis: ONNX Runtime joins others with a
    product, which fails or ends the process where the batch is empty.
    """
    turned = given(node, 0)
    maker = made_by(turned, "Transpose")
    if maker is None or only_reader(turned) is not node:
        return None
    dims, left = tidying.shapes.dims(turned), [*tidying.shapes.dims(node.outputs[0])]
    kept: list[int] = []
    for axis, dim in enumerate(dims):
        if left and same(dim, left[0]):
            kept.append(axis)
            left.pop(0)
        elif not same(dim, 1):
            return None
    if left or len(kept) == len(dims):
        return None
    order = permutation(maker, len(dims))
    before = sorted(order[axis] for axis in kept)
    gone = [axis for axis in range(len(dims)) if axis not in before]
    perm = [before.index(order[axis]) for axis in kept]
    if perm[0] or perm[-1] != len(perm) - 1:
        return None
    return tidying.node(node, "Transpose", [tidying.squeezed(maker, given(maker, 0), gone)], perm=perm)


def _only_row(tidying: Tidying, node: ir.Node) -> ir.Value | None:
    source, index = given(node, 0), given(node, 1)
    if integers(index) not in ([0], [-1]) or tidying.shapes.rank(index):
        return None
    axis = attribute_int(node, "axis", 0) % tidying.shapes.rank(source)
    return tidying.squeezed(node, source, [axis]) if same(tidying.shapes.dims(source)[axis], 1) else None


def _sum_of_sum(tidying: Tidying, node: ir.Node) -> ir.Value | None:
    outer = tidying.term(node)
    maker = outer[0].producer() if outer is not None else None
    inner = tidying.term(maker) if maker is not None else None
    if outer is None or inner is None or only_reader(outer[0]) is not node:
        return None
    return tidying.summed(node, inner[0], inner[1] + outer[1])


def _sum_before_pad(tidying: Tidying, node: ir.Node) -> ir.Value | None:
    outer = tidying.term(node)
    pad = made_by(outer[0], "Pad") if outer is not None else None
    if outer is None or pad is None or only_reader(outer[0]) is not node:
        return None
    source, pads = given(pad, 0), integers(pad.inputs[1]) if len(pad.inputs) == 2 else None
    maker = source.producer()
    inner = tidying.term(maker) if maker is not None else None
    zeros = attribute_string(pad, "mode", "constant") == "constant"
    if pads is None or inner is None or not zeros or only_reader(source) is not pad:
        return None
    dims, rank = tidying.shapes.dims(source), tidying.shapes.rank(source)
    sides = [(pads[axis], pads[axis + rank]) for axis in range(rank)]
    shape = [dim if any(side) else size for dim, side, size in zip(dims, sides, inner[1].shape, strict=True)]
    known = [size for size in shape if isinstance(size, int)]
    if len(known) < rank or min(map(min, sides)) < 0:
        return None
    moved = tidying.node(pad, "Pad", [inner[0], *[value for value in pad.inputs[1:] if value is not None]])
    return tidying.summed(node, moved, np.pad(np.broadcast_to(inner[1], known), sides) + outer[1])


def _class_row(tidying: Tidying, node: ir.Node) -> ir.Value | None:
    outer = tidying.term(node)
    joined = made_by(outer[0], "Concat") if outer is not None else None
    if outer is None or joined is None or only_reader(outer[0]) is not node:
        return None
    dims = tidying.shapes.dims(outer[0])
    axis = attribute_int(joined, "axis", 0) % len(dims)
    parts = [(value, batch_invariant(tidying.shapes, value)) for value in joined.inputs if value is not None]
    computed = [value for value, array in parts if array is None]
    sizes = [tidying.shapes.static(value, axis) for value, _ in parts]
    known = [size for size in sizes if size is not None]
    if len(computed) != 1 or len(known) < len(sizes) or axis == 0 or opset(node) < PADS_AS_INPUT:
        return None
    place = next(position for position, (value, _) in enumerate(parts) if value is computed[0])
    shared = [array for _, array in parts if array is not None]
    shape = [*shared[0].shape]
    shape[axis] = known[place]
    table = np.concatenate([np.zeros(shape) if array is None else array for _, array in parts], axis)
    pads = [0] * 2 * len(dims)
    pads[axis], pads[len(dims) + axis] = sum(known[:place]), sum(known[place + 1 :])
    padded = tidying.node(joined, "Pad", [computed[0], tidying.constants.add_integers(pads, "pads")])
    return tidying.summed(node, padded, table + outer[1])


Rule = Callable[[Tidying, ir.Node], ir.Value | None]


def _patches_in_order(tidying: Tidying, node: ir.Node) -> ir.Value | None:
    return reorder_patch_features(tidying.shapes, tidying.constants, node)


RULES: Mapping[str, Mapping[str, Rule]] = {
    **{
        operator: {
            "joined with the reshape before it": _reshape_of_reshape,
            "moved before the transpose": _squeeze_of_transpose,
            "patches in the picture's order": _patches_in_order,
        }
        for operator in RESHAPES
    },
    "Transpose": {"moves axes of size 1": _ones_move, "joined with the transpose before it": _transpose_of_transpose},
    "Add": {
        "joined with the sum before it": _sum_of_sum,
        "joined with the sum before the padding": _sum_before_pad,
        "padded and summed with the tokens that all share": _class_row,
    },
    "Gather": {
        "computed as the only row": lambda tidying, node: squeeze_single_row(tidying.shapes, node),
        "is the only row": _only_row,
    },
}
