"""Folds affine maps into the linear layers beside them.

In: any graph. Out: the same outputs, without BatchNormalization, scales and shifts beside a MatMul, Gemm or Conv,
behind a ConvTranspose, or before a norm, also through Transpose, Reshape, Slice and means. `affine` and `layer_changes`
have the equations. Maps that cannot be folded stay.
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
from export.compiler.analyses.layer_changes import Change, outputs_of
from export.compiler.errors import Refused, Site
from export.compiler.graph.constants import UNROUNDED, Constants, is_constant
from export.compiler.graph.def_use import readers, remove_unused
from export.compiler.graph.node_builder import Nodes, nodes_before
from export.compiler.graph.shapes import Shapes
from export.compiler.passes.outcome import Outcome
from export.compiler.passes.prepare import LARGEST_FOLDED, SMALL

LARGEST_COPY = 1 << 16  # elements of a weight that several nodes read and that may be copied to fold a BatchNorm


@dataclass(frozen=True)
class Folding:
    """`value` ends the map; `changes` are before (`upstream`) or after it."""

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
    """Folds each map that no fold before it has changed; refused maps come last."""
    sites: list[Site] = []
    changed: set[ir.Node | None] = set()
    for value, form in sorted(ends(shapes), key=lambda end: end[0] in refusals):
        if changed & {*form.nodes, form.root.producer()}:
            continue
        try:
            folding = _check(shapes, value, form)
        except Refused as refused:
            refusals[value] = refused.refusal
            continue
        layers = ", ".join(f"{change.node.op_type} {change.node.outputs[0].name}" for change in folding.changes)
        what = "BatchNormalization" if form.norms else form.nodes[-1].op_type
        sites.append(
            Site(value.name or "", what, f"folded into {layers} {'before' if folding.upstream else 'after'} it")
        )
        refusals.pop(value, None)
        layers_changed = {change.node for change in folding.changes}
        changed |= {*form.nodes, *layers_changed, form.root.producer()}
        changed |= {use.node for node in layers_changed for use in node.outputs[0].uses()}  # the bias may be theirs
        Folder(model.graph, folding).run()
        remove_unused(model)
    return sites


def _check(shapes: Shapes, value: ir.Value, form: Affine) -> Folding:
    """Raises Refused if neither side takes up the map."""
    if form.root.dtype not in UNROUNDED:
        raise Refused(value.name or "", "scale", f"new weights of {form.root.dtype} would be rounded again")
    try:
        return _worth(Folding(value, form, tuple(fold_downstream(shapes, value, form.scale, form.shift)), False))
    except Refused as refused:
        below = refused.refusal
    _only_inside(value, form)
    back = np.argsort(form.order)
    try:
        changes = fold_upstream(
            shapes, form.root, form.scale.transpose(back), form.shift.transpose(back), {*form.nodes}
        )
    except Refused as refused:
        above = refused.refusal
        raise Refused(value.name or "", form.nodes[-1].op_type, f"before it {above}; after it {below}") from refused
    return _worth(Folding(value, form, tuple(changes), True))


def ends(shapes: Shapes) -> Iterator[tuple[ir.Value, Affine]]:
    """Values that end an affine map: not every reader continues it."""
    affines = Affines(shapes)
    for node in shapes.graph:
        for value in node.outputs:
            if value.shape is None:
                continue
            form = affines.of(value)
            carried = [
                output
                for reader in readers(value)
                for output in reader.outputs
                if output.shape is not None and affines.of(output).root is form.root
            ]
            if (
                form.root is not value
                and form.scales
                and (len(carried) < len(readers(value)) or value.is_graph_output())
            ):
                yield value, form


def _worth(folding: Folding) -> Folding:
    """Raises Refused for a scale beside a large weight, as the head of a decoder, or one that stays for others."""
    largest = max(math.prod(change.shape) for change in folding.changes)
    if largest > LARGEST_FOLDED and not folding.form.norms:
        raise Refused(folding.value.name or "", "scale", f"is not worth a copy of {largest:,} weights")
    nodes, copied = {change.node for change in folding.changes}, LARGEST_COPY if folding.form.norms else SMALL
    for weight in (given for node in nodes for given in node.inputs if given is not None):
        large = weight.const_value is not None and weight.const_value.size > copied
        if large and any(use.node not in nodes for use in weight.uses()):
            raise Refused(weight.name or "", "scale", "is not worth a copy of a weight that other nodes read, too")
    return folding


def _only_inside(value: ir.Value, form: Affine) -> None:
    """Raises Refused if another node reads a value inside the map: folding would change that value."""
    for node in form.nodes:
        for output in node.outputs:
            others = [node for node in readers(output) if node not in form.nodes]
            if output is not value and (others or output.is_graph_output()):
                raise Refused.of(output, "is read from outside the map")


class Folder:
    def __init__(self, graph: ir.Graph, folding: Folding) -> None:
        self.graph, self.folding, self.constants = graph, folding, Constants(graph)

    def run(self) -> None:
        root = self.folding.form.root
        for change in self.folding.changes:
            gained = self._change(change)
            if self.folding.upstream and change.node.outputs[0] is root:
                root = gained
        value, order = self.folding.value, self.folding.form.order
        if list(order) != list(range(len(order))):
            root = self._behind(value, "Transpose", [root], {"perm": [*order]})
        if value.is_graph_output():
            root = self._behind(value, "Identity", [root])
        self.constants.replace(value, root, "mapped")

    def _change(self, change: Change) -> ir.Value:
        """Returns the node's output, or the sum with a new bias."""
        node, output = change.node, change.node.outputs[0]
        name, dtype = f"{output.name}_folded", output.dtype or ir.DataType.FLOAT
        place = next(k for k, given in enumerate(node.inputs) if is_constant(given)) if node.op_type == "Add" else 1
        weight = self.constants.add_computed(change.weight, change.shape, name, dtype)
        if change.epsilon is not None:
            return self._normalised(node, weight, change.epsilon)
        node.replace_input_with(place, weight)
        if node.op_type in ("Gemm", "Conv", "ConvTranspose"):
            bias = np.broadcast_to(change.bias, (outputs_of(node, change.shape),))
            if len(node.inputs) < 3:
                node.resize_inputs(3)
            node.replace_input_with(2, self.constants.add(np.array(bias), f"{output.name}_bias", dtype))
            return output
        if not change.bias.any() or self.constants.add_to_bias(output, change.bias, self.folding.form.nodes):
            return output
        added = self.constants.add(np.array(change.bias), f"{output.name}_bias", dtype)
        total = self._behind(output, "Add", [output, added])
        self.constants.replace(output, total, "mapped")
        return total

    def _normalised(self, norm: ir.Node, gamma: ir.Value, epsilon: float) -> ir.Value:
        """A new node: the double reference keeps what it knows of a node's attributes."""
        old, given = norm.outputs[0], [norm.inputs[0], gamma, *norm.inputs[2:]]
        attributes = {**norm.attributes, "epsilon": ir.AttrFloat32("epsilon", epsilon)}
        new = nodes_before(self.constants, norm).add(norm.op_type, given, old.dtype, attributes, old.shape)
        self.constants.replace(old, new, "scaled")
        return new

    def _behind(
        self,
        value: ir.Value,
        operator: str,
        inputs: Sequence[ir.Value],
        attributes: Mapping[str, Sequence[int]] | None = None,
    ) -> ir.Value:
        """A new node behind the node that makes `value`, with its shape and type."""
        producer = value.producer()
        if producer is None:
            raise Refused(value.name or "", operator, "expected a node that makes the value")
        nodes = Nodes(self.constants, value.name or "", partial(self.graph.insert_after, producer))
        return nodes.add(operator, inputs, value.dtype, attributes, value.shape)
