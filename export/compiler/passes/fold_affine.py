"""Folds affine maps into the linear layers before or after them: BatchNormalization, scales and shifts.

In: any graph. Out: the same outputs, without maps z = x * scale + shift next to a MatMul, Gemm or Conv, after a
ConvTranspose or before a norm, also through Transpose, Reshape, Slice, means and residual sums:

    (x W + b) * scale + shift = x (W scale) + (b scale + shift)        (x * scale + shift) W = x (scale W) + shift W

`affine` finds the maps; `fold_upstream`, `fold_downstream` and `linear_layer_changes` have the equations of other
layers.

Refuses, by the name of the operator in the way, a map with no such layer on either side; a value inside the map, or a
weight, that another node reads; weights of fewer bits than float32, which would be rounded again; and for a plain
scale a layer whose weight is too large for a copy of it to pay.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import onnx_ir as ir

from export.compiler.analyses.affine import Affine, Affines
from export.compiler.analyses.fold_downstream import fold_downstream
from export.compiler.analyses.fold_upstream import fold_upstream
from export.compiler.analyses.linear_layer_changes import Change, outputs_of
from export.compiler.errors import Refused, Site
from export.compiler.graph.constants import UNROUNDED, Constants, is_constant
from export.compiler.graph.def_use import other_readers, readers, remove_unused
from export.compiler.graph.node_builder import Nodes, nodes_before
from export.compiler.graph.symbolic_shapes import Shapes
from export.compiler.passes.outcome import Outcome
from export.compiler.passes.prepare import LARGEST_FOLDED, SMALL

LARGEST_COPY = 1 << 16  # elements of a weight that several nodes read and that may be copied to fold a BatchNorm


@dataclass(frozen=True)
class Folding:
    """A map that can be folded. `value` is its output; the layers in `changes` are before (`upstream`) or after it."""

    value: ir.Value
    form: Affine
    changes: tuple[Change, ...]
    upstream: bool


def fold_affine(model: ir.Model, sizes: Mapping[str, int]) -> Outcome:
    sites: list[Site] = []
    refusals: dict[ir.Value, Site] = {}
    while folded := _sweep(model, Shapes(model.graph, sizes), refusals):
        sites += folded
    return Outcome(tuple(sites), tuple(refusals.values()))


def _sweep(model: ir.Model, shapes: Shapes, refusals: dict[ir.Value, Site]) -> list[Site]:
    """Folds every map that no earlier fold of this sweep has changed.

    Maps that were refused before come last. A BatchNormalization comes before a scale, which could fold into it.
    """
    sites: list[Site] = []
    changed: set[ir.Node | None] = set()
    for value, form in sorted(_map_ends(shapes), key=lambda end: (end[0] in refusals, not end[1].norms)):
        if changed & {*form.nodes, form.root.producer()}:
            continue
        try:
            folding = _check(shapes, value, form)
        except Refused as refused:
            refusals[value] = refused.refusal
            continue
        layers = ", ".join(f"{change.node.op_type} {change.node.outputs[0].name}" for change in folding.changes)
        operator = "BatchNormalization" if form.norms else form.nodes[-1].op_type
        side = "before" if folding.upstream else "after"
        sites.append(Site(value.name or "", operator, f"folded into {layers} {side} it"))
        refusals.pop(value, None)
        changed_layers = {change.node for change in folding.changes}
        changed |= {*form.nodes, *changed_layers, form.root.producer()}
        changed |= {use.node for node in changed_layers for use in node.outputs[0].uses()}  # may hold the layer's bias
        Folder(model.graph, folding).run()
        remove_unused(model)
    return sites


def _check(shapes: Shapes, value: ir.Value, form: Affine) -> Folding:
    """The folding of a map, into the layers after it if possible. Raises Refused if neither side can take it up."""
    if form.root.dtype not in UNROUNDED:
        raise Refused(value.name or "", "scale", f"new weights of {form.root.dtype} would be rounded again")
    try:
        return _check_copies(Folding(value, form, tuple(fold_downstream(shapes, value, form.scale, form.shift)), False))
    except Refused as refused:
        after_it = refused.refusal
    _check_unread_inside(value, form)
    back = np.argsort(form.order)
    try:
        changes = fold_upstream(
            shapes, form.root, form.scale.transpose(back), form.shift.transpose(back), {*form.nodes}
        )
    except Refused as refused:
        reason = f"before it {refused.refusal}; after it {after_it}"
        raise Refused(value.name or "", form.nodes[-1].op_type, reason) from refused
    return _check_copies(Folding(value, form, tuple(changes), True))


def _map_ends(shapes: Shapes) -> Iterator[tuple[ir.Value, Affine]]:
    """The values that end a map, with the map: outputs of the graph, and those of which a reader ends the map."""
    affines = Affines(shapes)
    for node in shapes.graph:
        for value in node.outputs:
            if value.shape is None:
                continue
            form = affines.of(value)
            continuations = [
                output
                for reader in readers(value)
                for output in reader.outputs
                if output.shape is not None and affines.of(output).root is form.root
            ]
            ends_here = len(continuations) < len(readers(value)) or value.is_graph_output()
            if form.root is not value and form.scales and ends_here:
                yield value, form


def _check_copies(folding: Folding) -> Folding:
    """The folding itself. Raises Refused if it needs a copy of a weight, which the file then holds twice.

    That is a weight that other nodes read, too, or for a plain scale any large weight, as the head of a decoder.
    """
    largest = max(math.prod(change.shape) for change in folding.changes)
    if largest > LARGEST_FOLDED and not folding.form.norms:
        raise Refused(folding.value.name or "", "scale", f"is not worth a copy of {largest:,} weights")
    nodes, limit = {change.node for change in folding.changes}, LARGEST_COPY if folding.form.norms else SMALL
    for weight in (value for node in nodes for value in node.inputs if value is not None):
        is_large = weight.const_value is not None and weight.const_value.size > limit
        if is_large and any(use.node not in nodes for use in weight.uses()):
            raise Refused(weight.name or "", "scale", "is not worth a copy of a weight that other nodes read, too")
    return folding


def _check_unread_inside(value: ir.Value, form: Affine) -> None:
    """Raises Refused if another node reads a value inside the map: folding into layers before changes that value."""
    for output in (output for node in form.nodes for output in node.outputs):
        if output is not value and other_readers(output, form.nodes):
            raise Refused.of(output, "is read from outside the map")


class Folder:
    """Applies a folding to the graph. Call `run` once."""

    def __init__(self, graph: ir.Graph, folding: Folding) -> None:
        self.graph, self.folding, self.constants = graph, folding, Constants(graph)

    def run(self) -> None:
        """Changes the layers, and lets the readers of the map's output read its root; the caller removes the map."""
        root = self.folding.form.root
        for change in self.folding.changes:
            new_output = self._change(change)
            if self.folding.upstream and change.node.outputs[0] is root:
                root = new_output
        value, order = self.folding.value, self.folding.form.order
        if list(order) != list(range(len(order))):
            root = self._behind(value, "Transpose", [root], perm=[*order])
        if value.is_graph_output():
            root = self._behind(value, "Identity", [root])
        self.constants.replace(value, root, "mapped")

    def _change(self, change: Change) -> ir.Value:
        """Gives a layer its new weight and bias. Returns the layer's output, or the output of an Add for the bias."""
        node, output = change.node, change.node.outputs[0]
        name, dtype = f"{output.name}_folded", output.dtype or ir.DataType.FLOAT
        position = next(k for k, value in enumerate(node.inputs) if is_constant(value)) if node.op_type == "Add" else 1
        weight = self.constants.add_computed(change.weight, change.shape, name, dtype)
        if change.epsilon is not None:
            return self._scale_norm(node, weight, change.epsilon)
        node.replace_input_with(position, weight)
        if node.op_type in ("Gemm", "Conv", "ConvTranspose", "BatchNormalization"):
            bias = np.broadcast_to(change.bias, (outputs_of(node, change.shape),))
            if len(node.inputs) < 3:
                node.resize_inputs(3)
            node.replace_input_with(2, self.constants.add(np.array(bias), f"{output.name}_bias", dtype))
            return output
        if not change.bias.any() or self.constants.add_to_bias(output, change.bias, self.folding.form.nodes):
            return output
        bias_value = self.constants.add(np.array(change.bias), f"{output.name}_bias", dtype)
        total = self._behind(output, "Add", [output, bias_value])
        self.constants.replace(output, total, "mapped")
        return total

    def _scale_norm(self, norm: ir.Node, gamma: ir.Value, epsilon: float) -> ir.Value:
        """Replaces a norm by a new node, as the proof's runner in double keeps the attributes of the nodes it knows."""
        old, inputs = norm.outputs[0], [norm.inputs[0], gamma, *norm.inputs[2:]]
        attributes = {**norm.attributes, "epsilon": ir.AttrFloat32("epsilon", epsilon)}
        new = nodes_before(self.constants, norm).add(norm.op_type, inputs, old.shape, **attributes)
        self.constants.replace(old, new, "scaled")
        return new

    def _behind(
        self, value: ir.Value, operator: str, inputs: Sequence[ir.Value], **attributes: Sequence[int]
    ) -> ir.Value:
        """Inserts a node behind the producer of `value`. Its output has the shape and dtype of `value`."""
        producer = value.producer()
        if producer is None:
            raise Refused(value.name or "", operator, "expected a node that makes the value")
        nodes = Nodes(self.constants, value.name or "", partial(self.graph.insert_after, producer))
        return nodes.add(operator, inputs, value.shape, **attributes)
