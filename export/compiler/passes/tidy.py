"""Simplifies what saves time but no multiplication: moves that cancel, the Concat of a class token, a single row.

In: a prepared graph, after the passes that multiply less. Out: the same outputs:

    Reshape(Reshape(x)) = Reshape(x)                   Transpose(Transpose(x)) = Transpose(x), or x
    Transpose(x) = Reshape(x), if only axes of size 1 change places
    Transpose(BN(Transpose(x))) = scale x + shift
    Squeeze(Transpose(x)) = Transpose(Squeeze(x))      x[0] = Squeeze(x), if it has one row
    [t; x] + b = pad(x) + ([t; 0] + b)                 for a token t that all images share
    f(X)[:, 0] = f(X[:, 0])                            for the only row of X and operators f on single rows
    (x P) W = x (P W)                                  for an order P of features, see `reorder_patch_features`
    Reshape(x, [b, n, 2, 8]) = Reshape(x, [0, 0, 2, 8])    if b and n are the sizes of x

Reads a node and the nodes before it: `RULES` has the rules by the node's operator. Refuses nothing by name: a node
stays where no rule applies.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import onnx_ir as ir

from export.compiler.analyses.affine import Affines, constant_term
from export.compiler.analyses.batch_invariant import concat_as_padding
from export.compiler.errors import Refused, Site
from export.compiler.graph.attributes import attribute_int, given, opset, permutation
from export.compiler.graph.constants import UNROUNDED, Constants, integers, is_constant
from export.compiler.graph.def_use import made_by, made_of, only_reader, other_readers
from export.compiler.graph.node_builder import nodes_before
from export.compiler.graph.symbolic_shapes import Dim, Shapes, same, same_shape
from export.compiler.operators.table import ELEMENTWISE, RESHAPES
from export.compiler.passes.drop_unread import refresh
from export.compiler.passes.outcome import Outcome
from export.compiler.passes.reorder_patch_features import reorder_patch_features

LARGEST_TABLE = 1 << 20  # elements of the sum of a class token and positions
PADS_AS_INPUT = 11  # opset
ROW_BY_ROW = ELEMENTWISE | {"Add", "Sub", "Mul", "Div", "MatMul"}


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
    """What the rules share: the shapes, and how they add nodes."""

    def __init__(self, graph: ir.Graph, sizes: Mapping[str, int]) -> None:
        self.graph, self.shapes, self.constants = graph, Shapes(graph, sizes), Constants(graph)

    def node(self, at: ir.Node, operator: str, inputs: Sequence[ir.Value], **attributes: list[int]) -> ir.Value:
        """A new node before `at`, whose output has the shape and dtype of the output of `at`."""
        like = at.outputs[0]
        return nodes_before(self.constants, at).add(operator, inputs, like.shape, **attributes)

    def squeezed(self, at: ir.Node, source: ir.Value, axes: Sequence[int]) -> ir.Value:
        """`source` without axes of size 1."""
        new = nodes_before(self.constants, at).squeeze(source, axes)
        new.shape = ir.Shape([dim for axis, dim in enumerate(source.shape or ()) if axis not in axes])
        return new

    def reshaped(self, at: ir.Node, source: ir.Value) -> ir.Value | None:
        """`source` in the shape of `at`'s output, by a Reshape if necessary.

        None if the Reshape would need a size of -1 that `at` does not have itself, or has elsewhere and this one beside
        a copied size: on an empty value -1 fails.
        """
        before, after = self.shapes.dims(source), self.shapes.dims(at.outputs[0])
        if same_shape(before, after) and not at.outputs[0].is_graph_output():
            return source
        sizes = _reshape_sizes(before, after)
        original_sizes = (integers(at.inputs[1]) if at.op_type == "Reshape" else None) or []
        if -1 in sizes:
            is_moved = -1 not in original_sizes or (0 in sizes and original_sizes[sizes.index(-1)] != -1)
            if is_moved or sizes.count(-1) > 1:
                return None
        return self.node(at, "Reshape", [source, self.constants.add_integers(sizes, "shape")])


def _reshape_sizes(before: Sequence[Dim], after: Sequence[Dim]) -> list[int]:
    """Reshape's shape: of each axis a number, 0 to copy the source's size of this axis, or else -1."""
    copied = [axis < len(before) and same(before[axis], dim) for axis, dim in enumerate(after)]
    return [dim if isinstance(dim, int) and dim else 0 if copied[axis] else -1 for axis, dim in enumerate(after)]


def _reshape_of_reshape(tidying: Tidying, node: ir.Node) -> ir.Value | None:
    """Reshape(Reshape(x)) = Reshape(x)."""
    source = made_of(node.inputs[0], *RESHAPES)
    return tidying.reshaped(node, source) if source is not None else None


def _copied_sizes(tidying: Tidying, node: ir.Node) -> ir.Value | None:
    """Reshape(x, [b, n, 2, 8]) = Reshape(x, [0, 0, 2, 8]), if b and n are the sizes of x.

    ONNX Runtime may write one of the computed sizes as -1, which fails where the batch is empty.
    """
    is_computed = node.op_type == "Reshape" and integers(node.inputs[1]) is None
    return tidying.reshaped(node, given(node, 0)) if is_computed else None


def _transpose_of_ones(tidying: Tidying, node: ir.Node) -> ir.Value | None:
    """Transpose(x) = Reshape(x), if only axes of size 1 change places."""
    source = given(node, 0)
    dims = tidying.shapes.dims(source)
    long_axes = [axis for axis in permutation(node, len(dims)) if not same(dims[axis], 1)]
    return tidying.reshaped(node, source) if long_axes == sorted(long_axes) else None


def _transpose_of_transpose(tidying: Tidying, node: ir.Node) -> ir.Value | None:
    """Transpose(Transpose(x)) = Transpose(x), or x."""
    transpose = made_by(node.inputs[0], "Transpose")
    if transpose is None:
        return None
    source = given(transpose, 0)
    rank = tidying.shapes.rank(source)
    first, second = permutation(transpose, rank), permutation(node, rank)
    order = [first[axis] for axis in second]
    if order == sorted(order) and not node.outputs[0].is_graph_output():
        return source
    return tidying.node(node, "Transpose", [source], perm=order)


def _norm_of_features(tidying: Tidying, node: ir.Node) -> ir.Value | None:
    """Transpose(BatchNormalization(Transpose(x))) = scale x + shift, of a norm that no linear layer takes up."""
    norm = made_by(node.inputs[0], "BatchNormalization")
    if norm is None or only_reader(norm.outputs[0]) is not node:
        return None
    form = Affines(tidying.shapes).of(node.outputs[0])
    if not form.norms or [*form.order] != sorted(form.order) or form.root.dtype not in UNROUNDED:
        return None
    name, dtype = node.outputs[0].name, form.root.dtype
    scaled = tidying.node(node, "Mul", [form.root, tidying.constants.add(form.scale, f"{name}_scale", dtype)])
    return tidying.node(node, "Add", [scaled, tidying.constants.add(form.shift, f"{name}_shift", dtype)])


def _squeeze_of_transpose(tidying: Tidying, node: ir.Node) -> ir.Value | None:
    """Squeeze(Transpose(x)) = Transpose(Squeeze(x)), if the new Transpose leaves the first and the last axis.

    ONNX Runtime fuses other Transposes with a product, which fails or ends the process where the batch is empty.
    """
    transposed = given(node, 0)
    transpose = made_by(transposed, "Transpose")
    if transpose is None or only_reader(transposed) is not node:
        return None
    dims, remaining = tidying.shapes.dims(transposed), [*tidying.shapes.dims(node.outputs[0])]
    kept_axes: list[int] = []
    for axis, dim in enumerate(dims):
        if remaining and same(dim, remaining[0]):
            kept_axes.append(axis)
            remaining.pop(0)
        elif not same(dim, 1):
            return None
    if remaining or len(kept_axes) == len(dims):
        return None
    order = permutation(transpose, len(dims))
    kept_before = sorted(order[axis] for axis in kept_axes)
    squeezed_axes = [axis for axis in range(len(dims)) if axis not in kept_before]
    perm = [kept_before.index(order[axis]) for axis in kept_axes]
    if perm[0] or perm[-1] != len(perm) - 1:
        return None
    squeezed = tidying.squeezed(transpose, given(transpose, 0), squeezed_axes)
    return tidying.node(node, "Transpose", [squeezed], perm=perm)


def _only_row(tidying: Tidying, node: ir.Node) -> ir.Value | None:
    """x[0] = Squeeze(x), if x has one row."""
    source, index = given(node, 0), given(node, 1)
    if integers(index) not in ([0], [-1]) or tidying.shapes.rank(index):
        return None
    axis = attribute_int(node, "axis", 0) % tidying.shapes.rank(source)
    return tidying.squeezed(node, source, [axis]) if same(tidying.shapes.dims(source)[axis], 1) else None


def _row_on_two_axes(tidying: Tidying, node: ir.Node) -> ir.Value | None:
    """f(X)[:, 0] = f(X[:, 0]) for the only row of X, if f has a product: on two axes ONNX Runtime adds its bias too."""
    source, index, shapes = given(node, 0), given(node, 1), tidying.shapes
    if integers(index) not in ([0], [-1]) or shapes.rank(index) or attribute_int(node, "axis", 0) != 1:
        return None
    makers, waiting = set[ir.Node](), [source]
    while waiting:
        maker = waiting.pop().producer()
        if maker is not None and maker not in makers and _works_on_a_row(shapes, maker):
            makers.add(maker)
            waiting += [value for value in maker.inputs if value is not None]
    while read_elsewhere := [maker for maker in makers if other_readers(maker.outputs[0], makers | {node})]:
        makers -= {*read_elsewhere}
    if not any(maker.op_type == "MatMul" for maker in makers):
        return None
    rows: dict[ir.Value | None, ir.Value] = {}  # by value (B, 1, D): the same as (B, D)
    nodes = nodes_before(tidying.constants, node)
    for maker in (maker for maker in tidying.graph if maker in makers):
        for value in maker.inputs:
            if value is not None and not is_constant(value) and value not in rows:
                rows[value] = tidying.squeezed(node, value, [1])
        row = nodes.copy(maker, [rows.get(value, value) for value in maker.inputs], "row").outputs[0]
        row.shape = ir.Shape(shapes.dims(maker.outputs[0])[::2])
        rows[maker.outputs[0]] = row
    return rows[source]


def _works_on_a_row(shapes: Shapes, node: ir.Node) -> bool:
    """Whether a node computes (B, 1, D) row by row from values of this shape, constant rows and weights."""
    if node.domain or node.op_type not in ROW_BY_ROW or not _has_single_row(shapes, node.outputs[0]):
        return False
    first, *others = [value for value in node.inputs if value is not None]
    if node.op_type == "MatMul":
        return _has_single_row(shapes, first) and is_constant(others[0]) and shapes.rank(others[0]) == 2
    rows = [value for value in (first, *others) if not is_constant(value)]
    constants = [value for value in (first, *others) if is_constant(value)]
    are_rows = all(shapes.rank(value) < 2 or shapes.dims(value)[:-1] == (1,) for value in constants)
    return bool(rows) and are_rows and all(_has_single_row(shapes, value) for value in rows)


def _has_single_row(shapes: Shapes, value: ir.Value) -> bool:
    return value.shape is not None and shapes.rank(value) == 3 and same(shapes.dims(value)[1], 1)


def _class_token_as_pad(tidying: Tidying, node: ir.Node) -> ir.Value | None:
    """[t; x] + b = pad(x) + ([t; 0] + b), for a token t that all images share."""
    term = constant_term(tidying.shapes, node) if node.outputs[0].dtype in UNROUNDED else None
    concat = made_by(term[0], "Concat") if term is not None and only_reader(term[0]) is node else None
    padding = concat_as_padding(tidying.shapes, concat) if concat is not None else None
    if term is None or concat is None or padding is None or opset(node) < PADS_AS_INPUT:
        return None
    value, axis, before, after, table = padding
    if (total := table + term[1]).size > LARGEST_TABLE:
        return None
    rank = tidying.shapes.rank(value)
    pads = [0] * 2 * rank
    pads[axis], pads[rank + axis] = before, after
    padded = tidying.node(concat, "Pad", [value, tidying.constants.add_integers(pads, "pads")])
    return tidying.node(node, "Add", [padded, tidying.constants.add(total, f"{value.name}_table", value.dtype)])


Rule = Callable[[Tidying, ir.Node], ir.Value | None]
"""The value that takes the place of the node's output, or None if the rule does not apply."""

RULES: Mapping[str, Mapping[str, Rule]] = {
    **{
        operator: {
            "joined with the reshape before it": _reshape_of_reshape,
            "moved before the transpose": _squeeze_of_transpose,
            "copies its sizes": _copied_sizes,
            "patches in the picture's order": lambda tidying, node: reorder_patch_features(
                tidying.shapes, tidying.constants, node
            ),
        }
        for operator in RESHAPES
    },
    "Transpose": {
        "moves axes of size 1": _transpose_of_ones,
        "joined with the transpose before it": _transpose_of_transpose,
        "written as a product and a sum": _norm_of_features,
    },
    "Add": {
        "padded and summed with the tokens that all share": _class_token_as_pad,
    },
    "Gather": {
        "computed as the only row": _row_on_two_axes,
        "is the only row": _only_row,
    },
}
