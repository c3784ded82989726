"""Hoists a mean before the linear operators whose output it averages.

In: a prepared graph. Out: the same outputs, with products computed for a mean of rows instead of for every row. For a
weight W, a constant b, and rows X and Y:

    mean(X W) = mean(X) W      mean(X + Y) = mean(X) + mean(Y)      mean(X + b) = mean(X) + b

A classifier that averages its tokens then computes the last layer of its last block for one row. Reads the axis maps of
`input_axes`. Refuses nothing by name: a mean stays without a product before it that only the mean reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import onnx_ir as ir

from export.compiler.analyses.axis_maps import input_axes
from export.compiler.errors import Site
from export.compiler.graph.attributes import attribute_int, axes_of, given
from export.compiler.graph.constants import UNROUNDED, Constants
from export.compiler.graph.def_use import only_reader, other_readers
from export.compiler.graph.node_builder import nodes_before
from export.compiler.graph.runtime_sizes import Sizes, shape_plan
from export.compiler.graph.symbolic_shapes import Shapes, same
from export.compiler.operators.costs import is_multiplying
from export.compiler.operators.table import view_of
from export.compiler.operators.view import long_axes
from export.compiler.passes.drop_unread import refresh

Axes = tuple[int, ...]

SUMS = {"Add", "Sub"}  # linear in all their inputs together
PRODUCTS = {"MatMul", "Mul"}  # linear in each input, if the other does not vary
LAYERS = {"BatchNormalization", "Conv", "Div", "Reshape", "Transpose"}  # linear in their first input


@dataclass(frozen=True)
class Hoisted:
    """A node that is computed for the mean along `axes` of its output, from means of its inputs.

    `read`: position of an input that varies along these axes -> its own such axes.
    """

    node: ir.Node
    axes: Axes
    read: Mapping[int, Axes]


def hoist_means(model: ir.Model, sizes: Mapping[str, int]) -> list[Site]:
    """Changes the graph in place. Returns the multiplying operators that are now computed for a mean alone."""
    sites: list[Site] = []
    for mean in list(model.graph):
        if mean.domain or mean.op_type not in ("ReduceMean", "GlobalAveragePool"):
            continue
        value = given(mean, 0)
        if value.dtype not in UNROUNDED or value.shape is None or only_reader(value) is not mean:
            continue
        shapes = Shapes(model.graph, sizes)
        axes = _averaged_axes(shapes, mean)
        if hoisted := _saving(_linear(shapes, mean, axes)):
            _build(shapes, mean, axes, hoisted)
            refresh(model)
            change = f"computed only for the mean of axis {' and '.join(map(str, axes))}"
            sites += [Site.at(each.node, change) for each in hoisted if is_multiplying(each.node)]
    return sites


def _averaged_axes(shapes: Shapes, mean: ir.Node) -> Axes:
    """The axes of more than one element along which `mean` averages; none if they are computed when the graph runs."""
    dims = shapes.dims(given(mean, 0))
    axes = range(2, len(dims)) if mean.op_type == "GlobalAveragePool" else axes_of(mean) or ()
    return tuple(axis for axis in sorted({axis % len(dims) for axis in axes}) if not same(dims[axis], 1))


def _linear(shapes: Shapes, mean: ir.Node, axes: Axes) -> list[Hoisted]:
    """The linear operators of which only means are read, in the graph's order."""
    source = given(mean, 0)
    wanted: dict[ir.Value | None, Axes | None] = {source: axes or None}  # None: the means are not along the same axes
    readers: set[ir.Node | None] = {mean}
    hoisted: list[Hoisted] = []
    for node in reversed(shapes.graph):
        value = node.outputs[0]
        along = wanted.get(value)
        if along is None or other_readers(value, readers):
            continue
        if (read := _read(shapes, node, along)) is not None:
            readers.add(node)
            hoisted.append(Hoisted(node, along, read))
            for position, operand_axes in read.items():
                operand = node.inputs[position]
                wanted[operand] = operand_axes if wanted.get(operand, operand_axes) == operand_axes else None
    return hoisted[::-1]


def _read(shapes: Shapes, node: ir.Node, axes: Axes) -> dict[int, Axes] | None:
    """Position of an input -> its axes averaged for the mean of the output; None if the node is not linear there."""
    if node.domain or node.op_type not in SUMS | PRODUCTS | LAYERS or node.outputs[0].shape is None:
        return None
    if node.op_type == "Reshape":
        return _of_reshape(shapes, node, axes)
    read: dict[int, Axes] = {}
    for axis in axes:
        sources = input_axes(shapes, node, node.outputs[0], axis)
        if not sources:
            return None
        for position, source in sources.items():
            read[position] = tuple(sorted((*read.get(position, ()), source)))
    is_linear = node.op_type in SUMS or [*read] == [0] or (node.op_type in PRODUCTS and len(read) == 1)
    return read if is_linear else None


def _of_reshape(shapes: Shapes, node: ir.Node, axes: Axes) -> dict[int, Axes] | None:
    """As `_read`: of axes that a Reshape joins or splits, as (B, H W, C) -> (B, H, W, C), all are averaged or none."""
    view = view_of(shapes, node)
    if view is None or shape_plan(shapes, node, dict.fromkeys(axes, 1)) is None:
        return None
    read: set[int] = set()
    for run in view.runs:
        made = long_axes(view.after, run.made)
        if any(axis in axes for axis in made):
            read |= {*long_axes(view.before, run.source)}
            if not {*made} <= {*axes}:
                return None
    return {0: tuple(sorted(read))}


def _saving(linear: list[Hoisted]) -> list[Hoisted]:
    """Those that multiply matrices, or read what such an operator computes: other means would only be more."""
    saving: dict[ir.Node | None, Hoisted] = {}
    for each in linear:
        producers = [given(each.node, position).producer() for position in each.read]
        if is_multiplying(each.node) or any(producer in saving for producer in producers):
            saving[each.node] = each
    return [*saving.values()]


def _build(shapes: Shapes, mean: ir.Node, axes: Axes, hoisted: list[Hoisted]) -> None:
    """Lets the readers of `mean` read what copies of the nodes compute of means; the caller removes unused nodes."""
    constants = Constants(shapes.graph)
    nodes, means = nodes_before(constants, mean), dict[tuple[ir.Value, Axes], ir.Value]()
    sizes = Sizes(shapes, nodes)
    for each in hoisted:
        inputs = [*each.node.inputs]
        for position, along in each.read.items():
            value = given(each.node, position)
            means[value, along] = means.get((value, along)) or nodes.mean(value, along)
            inputs[position] = means[value, along]
        value = each.node.outputs[0]
        if each.node.op_type == "Reshape" and inputs[0] is not None:
            means[value, each.axes] = sizes.resized(each.node, inputs[0], dict.fromkeys(each.axes, 1))
        else:
            means[value, each.axes] = nodes.copy(each.node, inputs, "mean").outputs[0]
    new = means[given(mean, 0), axes]
    keeps = mean.op_type == "GlobalAveragePool" or attribute_int(mean, "keepdims", 1)
    constants.replace(mean.outputs[0], new if keeps else nodes.squeeze(new, axes_of(mean) or ()), "of_all")
