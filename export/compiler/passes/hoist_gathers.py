"""Moves the choice of rows at run time before the computation of the other rows.

In: a prepared graph with the choices that `choices` finds. Out: the same outputs. An operator of one row of its output
that reads the same row of its inputs is computed for the chosen rows, as far as no other reader needs all.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass

import onnx_ir as ir

from export.compiler.analyses.axis_maps import input_axes
from export.compiler.analyses.chosen_rows import Choice, choices, is_smaller
from export.compiler.analyses.demand import demand_shape
from export.compiler.errors import Site
from export.compiler.graph.attributes import reads_shape_alone
from export.compiler.graph.constants import Constants
from export.compiler.graph.node_builder import INT64, Nodes
from export.compiler.graph.runtime_sizes import Sizes
from export.compiler.graph.shapes import Shapes, same
from export.compiler.operators.boxes import WHOLE
from export.compiler.operators.costs import is_multiplying
from export.compiler.operators.data_movement import shape_plan
from export.compiler.operators.table import BROADCASTING, RESHAPES
from export.compiler.passes.drop_unread import refresh

OLDEST_OPSET = 12  # batch_dims of GatherND
ATTENTION = {"Attention", "MultiHeadAttention"}  # whose rules follow no batch
ALIGNED = BROADCASTING | {"MatMul", "Attention", "Expand"}  # an operand without the batch serves all of it

Place = tuple[int, int]  # of a value: the axis of its rows, and of its batch


def hoist_gathers(model: ir.Model, sizes: Mapping[str, int]) -> list[Site]:
    """The multiplications that are computed for the chosen rows alone, of a choice that is smaller than its source."""
    if model.graph.opset_imports.get("", 0) < OLDEST_OPSET:
        return []
    sites: list[Site] = []
    for choice in list(choices(Shapes(model.graph))):
        shapes = Shapes(model.graph, sizes)
        if not is_smaller(shapes, choice):
            continue
        moved = _Moved(shapes, choice)
        sites += moved.sites
        if moved.sites:
            moved.run()
            refresh(model)
    return sites


@dataclass(frozen=True)
class Operand:
    """An input that is read in one row: at `place` its own, or at axis `shared` the same rows for all of the batch.

    Else it is read whole; `texts`: the axis of its batch, if it has one.
    """

    place: Place | None = None
    shared: int | None = None
    texts: int | None = None


WHOLE_INPUT = Operand()


class _Moved:
    def __init__(self, shapes: Shapes, choice: Choice) -> None:
        self.shapes, self.choice, self.count = shapes, choice, choice.count or 1
        self.constants = Constants(shapes.graph)
        self.nodes = Nodes(self.constants, put=shapes.graph.append)
        self.sizes = Sizes(shapes, self.nodes)
        self.places = self._places()
        self.built: dict[tuple[ir.Value, Place], ir.Value] = {}
        self.copies: dict[ir.Node, ir.Node] = {}
        makers = [value.producer() for value in self.places]
        what = "a row that is" if self.count == 1 else f"{choice.count} rows that are"
        self.sites = [
            Site.at(maker, f"computed only for {what} chosen at run time")
            for maker in makers
            if maker is not None and is_multiplying(maker)
        ]

    def run(self) -> None:
        """Replaces the choice's output; the caller removes unused nodes."""
        value = self.choice.node.outputs[0]
        self.texts, self.rows = self._numbers()
        for node in list(self.shapes.graph):  # in order: `_part` would go as deep as the graph
            for output in node.outputs:
                if output in self.places:
                    self._part(output, self.places[output])
        new = self._part(self.choice.whole, (1, 0))
        if self.choice.count is None:
            new = self.nodes.squeeze(new, [1])
        new.shape = value.shape
        self.constants.replace(value, new, "of_all")

    def _places(self) -> dict[ir.Value, Place]:
        """The values of which nobody but the choice reads more than one row."""
        whole: set[ir.Value | None] = {*self.shapes.graph.outputs}
        places: dict[ir.Value, Place] = {}
        for node in reversed(self.shapes.graph):
            if node is self.choice.node:
                places[self.choice.whole] = 1, 0
                whole |= {*node.inputs[1:]}
                continue
            if node.outputs[0] is self.choice.node.inputs[0] and self._flattens(node, whole):
                continue
            if reads_shape_alone(node):
                demand_shape(self.shapes, node, asked := {node.outputs[0]: [WHOLE]})
                whole |= asked.keys() if node.outputs[0] in whole else set()
                continue
            wanted = [value for value in node.outputs if value in places and value not in whole]
            reads = [self._read(node, value, places[value]) for value in wanted]
            read = reads[0] if reads and all(each == reads[0] for each in reads) else None
            if any(value in whole for value in node.outputs) or (wanted and read is None):
                whole |= {*wanted, *node.inputs}
                continue
            for position, operand in (read or {}).items():
                value = node.inputs[position]
                if value is not None and (
                    operand.place is None or places.setdefault(value, operand.place) != operand.place
                ):
                    whole.add(value)
        return {value: place for value, place in places.items() if value not in whole}

    def _flattens(self, node: ir.Node, whole: Container[ir.Value | None]) -> bool:
        """Whether it is the Flatten of the choice, which alone reads it."""
        flat = node.outputs[0]
        return node.inputs[0] is self.choice.whole and len(flat.uses()) == 1 and flat not in whole

    def _read(self, node: ir.Node, value: ir.Value, place: Place) -> dict[int, Operand] | None:
        """What `node` reads to compute one row of `value`; None without a rule."""
        row, batch = place
        rows = input_axes(self.shapes, node, value, row)
        batches = input_axes(self.shapes, node, value, batch)
        if batches is None and node.op_type in ATTENTION:
            batches = {k: 0 for k, given in enumerate(node.inputs) if given is not None and self._has_batch(given)}
        resized = node.op_type in RESHAPES or node.op_type == "Expand"
        if rows is None or batches is None or not (rows or node.op_type == "Expand"):
            return None
        if resized and shape_plan(self.shapes, node, value, {row: self.count}) is None:
            return None
        read = {position: WHOLE_INPUT for position, given in enumerate(node.inputs) if given is not None}
        for position, axis in rows.items():
            given = node.inputs[position]
            if given is not None and position in batches:
                read[position] = Operand(place=(axis, batches[position]))
            elif given is not None and node.op_type in ALIGNED and self._aligned(value, given, place, axis):
                read[position] = Operand(shared=axis)
            else:
                return None
        for position in batches.keys() - rows.keys():
            read[position] = Operand(texts=batches[position])
        return read

    def _has_batch(self, value: ir.Value) -> bool:
        dims = self.shapes.dims(value)
        return len(dims) > 2 and same(dims[0], self.shapes.dims(self.choice.whole)[0])

    def _aligned(self, value: ir.Value, given: ir.Value, place: Place, row: int) -> bool:
        """Whether the rows of an operand meet those of `value`, and nothing its batch."""
        apart = self.shapes.rank(value) - self.shapes.rank(given)
        batch = place[1] - apart
        return row + apart == place[0] and (batch < 0 or same(self.shapes.dims(given)[batch], 1))

    def _part(self, value: ir.Value, place: Place) -> ir.Value:
        if (value, place) not in self.built:
            maker = value.producer() if self.places.get(value) == place else None
            self.built[value, place] = self._computed(maker, value, place) if maker else self._own(value, place)
        return self.built[value, place]

    def _computed(self, node: ir.Node, value: ir.Value, place: Place) -> ir.Value:
        read = self._read(node, value, place) or {}
        source = node.inputs[0]
        if source is not None and (node.op_type in RESHAPES or node.op_type == "Expand"):
            operator = "Expand" if node.op_type == "Expand" else "Reshape"
            plan = shape_plan(self.shapes, node, value, {place[0]: self.count}) or []
            inputs = [self._operand(value, source, read[0]), self.sizes.vector(plan)]
            return self.nodes.add(operator, inputs, value.dtype)
        if node not in self.copies:
            given = enumerate(node.inputs)
            parts = [self._operand(value, each, read[k]) if each is not None else None for k, each in given]
            self.copies[node] = self.nodes.copy(node, parts, "rows")
        return self.copies[node].outputs[value.index() or 0]

    def _operand(self, value: ir.Value, given: ir.Value, operand: Operand) -> ir.Value:
        if operand.place is not None:
            return self._part(given, operand.place)
        if operand.shared is not None:
            return self._shared(given, operand.shared, value)
        if self.texts is None or operand.texts is None:
            return given
        return self.nodes.gather(given, self.texts, operand.texts)

    def _own(self, value: ir.Value, place: Place) -> ir.Value:
        """The rows of each of the batch, by GatherND of (batch, rows, ...)."""
        row, batch = place
        order = [batch, row, *(axis for axis in range(self.shapes.rank(value)) if axis not in place)]
        nodes, places, known = self.nodes, self.nodes.unsqueeze(self.rows, [2]), 1
        if self.texts is not None:
            pairs = [nodes.reshape(self.texts, [-1, 1, 1]), places]
            places, known = nodes.add("Concat", pairs, INT64, {"axis": 2}), 0
        turned = nodes.transpose(value, order)
        chosen = nodes.add("GatherND", [turned, places], value.dtype, {"batch_dims": known})
        return nodes.transpose(chosen, [order.index(axis) for axis in range(len(order))])

    def _shared(self, given: ir.Value, row: int, value: ir.Value) -> ir.Value:
        """The chosen rows of a value without batch, along an axis of the batch."""
        nodes, rank, batch = self.nodes, self.shapes.rank(value), self.places[value][1]
        apart = rank - self.shapes.rank(given)
        whole = nodes.unsqueeze(given, [*range(apart)]) if apart else given
        row = row + apart
        rows = nodes.gather(whole, self.rows, row)  # (..., batch, rows, ...)
        rows = nodes.squeeze(rows, [batch if batch < row else batch + 1])
        held = [axis for own in range(rank) if own != batch for axis in ((batch, row) if own == row else (own,))]
        return nodes.transpose(rows, [held.index(axis) for axis in range(rank)])

    def _numbers(self) -> tuple[ir.Value | None, ir.Value]:
        """Of the chosen rows, int64: their texts (batch), None where each text has its own, and their places there
        (batch, rows).

        A number in all of the batch becomes 0 or more by the Gather, which fails where the original's does.
        """
        nodes, flat = self.nodes, self.choice.flat
        if flat is None:
            chosen = nodes.cast(self.choice.chosen, INT64)
            one = self.choice.count is None or self.shapes.rank(self.choice.chosen) < 3
            return None, nodes.reshape(chosen, [-1, 1]) if one else nodes.squeeze(chosen, [2])
        batch, rows = (self.sizes.vector([dim]) for dim in self.shapes.dims(self.choice.whole)[:2])
        end = nodes.scalar_of(nodes.add("Mul", [batch, rows]))
        every = nodes.add("Range", [nodes.scalar(0), end, nodes.scalar(1)])
        places = nodes.gather(every, nodes.reshape(flat, [-1]))
        texts, own = (nodes.add(operator, [places, rows]) for operator in ("Div", "Mod"))
        return texts, nodes.reshape(own, [-1, 1])
