"""Hoists a Gather of rows that are chosen at run time before the operators that compute all rows.

In: a prepared graph, with the choices of `runtime_gathered_rows`. Out: the same outputs, with operators computed for
the chosen rows alone. For an operator f that computes a row of its output from the same row of its inputs:

    gather(f(X, Y), r) = f(gather(X, r), gather(Y, r))

Reads the axis maps of `input_axes`. An operator stays as it is where another reader needs more rows, or where it mixes
rows or has no rule. Refuses nothing by name: before OLDEST_OPSET the graph stays.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass

import onnx_ir as ir

from export.compiler.analyses.axis_maps import input_axes
from export.compiler.analyses.demand import demand_shape
from export.compiler.analyses.runtime_gathered_rows import OLDEST_OPSET, Choice, choices, is_smaller
from export.compiler.errors import Site
from export.compiler.graph.attributes import reads_shape_alone
from export.compiler.graph.constants import Constants
from export.compiler.graph.node_builder import INT64, Nodes
from export.compiler.graph.runtime_sizes import Sizes, shape_plan
from export.compiler.graph.symbolic_shapes import Shapes, same
from export.compiler.operators.boxes import WHOLE
from export.compiler.operators.costs import is_multiplying
from export.compiler.operators.table import BROADCASTING, RESIZING
from export.compiler.passes.drop_unread import refresh

ATTENTION = {"Attention", "MultiHeadAttention"}  # `input_axes` has no rule for their batch: it is axis 0
ALIGNED = BROADCASTING | {"MatMul", "Attention", "Expand"}  # an operand may lack the batch: all of it reads the same

RowAxes = tuple[int, int]  # of a value: the axis of its rows and the axis of its batch


def hoist_gathers(model: ir.Model, sizes: Mapping[str, int]) -> list[Site]:
    """Changes the graph in place. Returns the multiplying operators that are now computed for the chosen rows alone.

    A choice of as many rows as there are, at `sizes`, stays.
    """
    if model.graph.opset_imports.get("", 0) < OLDEST_OPSET:
        return []
    sites: list[Site] = []
    for choice in list(choices(Shapes(model.graph))):
        shapes = Shapes(model.graph, sizes)
        if not is_smaller(shapes, choice):
            continue
        hoisting = _Hoisting(shapes, choice)
        sites += hoisting.sites
        if hoisting.sites:
            hoisting.run()
            refresh(model)
    return sites


@dataclass(frozen=True)
class Operand:
    """How a hoisted operator reads an input.

    - `axes`: it reads the chosen rows, which differ between texts.
    - `shared_rows`: it reads the chosen rows along this axis of a value without a batch.
    - Neither: it reads all rows. `batch`: the axis of the input's batch, if it has a batch.
    """

    axes: RowAxes | None = None
    shared_rows: int | None = None
    batch: int | None = None


class _Hoisting:
    """Call `run` once, if there are `sites`."""

    def __init__(self, shapes: Shapes, choice: Choice) -> None:
        self.shapes, self.choice, self.count = shapes, choice, choice.count or 1
        self.constants = Constants(shapes.graph)
        self.nodes = Nodes(self.constants, put=shapes.graph.append)
        self.sizes = Sizes(shapes, self.nodes)
        self.hoisted = self._hoisted()
        self.built: dict[tuple[ir.Value, RowAxes], ir.Value] = {}
        self.copies: dict[ir.Node, ir.Node] = {}
        producers = [value.producer() for value in self.hoisted]
        what = "a row that is" if self.count == 1 else f"{choice.count} rows that are"
        self.sites = [
            Site.at(producer, f"computed only for {what} chosen at run time")
            for producer in producers
            if producer is not None and is_multiplying(producer)
        ]

    def run(self) -> None:
        """Replaces the choice's output; the caller removes unused nodes."""
        value = self.choice.node.outputs[0]
        self.texts, self.rows = self._indices()
        for node in list(self.shapes.graph):  # in order: `_chosen_rows` would recurse as deep as the graph
            for output in node.outputs:
                if output in self.hoisted:
                    self._chosen_rows(output, self.hoisted[output])
        new = self._chosen_rows(self.choice.whole, (1, 0))
        if self.choice.count is None:
            new = self.nodes.squeeze(new, [1])
        self.constants.replace(value, new, "of_all")

    def _hoisted(self) -> dict[ir.Value, RowAxes]:
        """The values of which only the chosen rows are read, from the choice backward."""
        read_entirely: set[ir.Value | None] = {*self.shapes.graph.outputs}
        row_axes: dict[ir.Value, RowAxes] = {}
        for node in reversed(self.shapes.graph):
            if node is self.choice.node:
                row_axes[self.choice.whole] = 1, 0
                read_entirely |= {*node.inputs[1:]}
                continue
            if node.outputs[0] is self.choice.node.inputs[0] and self._flattens(node, read_entirely):
                continue
            if reads_shape_alone(node):
                demand_shape(self.shapes, node, demands := {node.outputs[0]: [WHOLE]})
                read_entirely |= demands.keys() if node.outputs[0] in read_entirely else set()
                continue
            outputs = [value for value in node.outputs if value in row_axes and value not in read_entirely]
            reads = [self._read(node, value, row_axes[value]) for value in outputs]
            read = reads[0] if reads and all(other == reads[0] for other in reads) else None
            if any(value in read_entirely for value in node.outputs) or (outputs and read is None):
                read_entirely |= {*outputs, *node.inputs}
                continue
            for position, operand in (read or {}).items():
                value = node.inputs[position]
                if value is not None and (
                    operand.axes is None or row_axes.setdefault(value, operand.axes) != operand.axes
                ):
                    read_entirely.add(value)
        return {value: axes for value, axes in row_axes.items() if value not in read_entirely}

    def _flattens(self, node: ir.Node, read_entirely: Container[ir.Value | None]) -> bool:
        """Whether a node joins batch and rows for a choice of the form Gather(Flatten(x), ...), and for it alone."""
        flat = node.outputs[0]
        return node.inputs[0] is self.choice.whole and len(flat.uses()) == 1 and flat not in read_entirely

    def _read(self, node: ir.Node, value: ir.Value, axes: RowAxes) -> dict[int, Operand] | None:
        """How `node` reads its inputs, by position, to compute the chosen rows of its output `value`.

        None if it needs other rows, or if no rule knows.
        """
        row, batch = axes
        rows = input_axes(self.shapes, node, value, row)
        batches = input_axes(self.shapes, node, value, batch)
        if batches is None and node.op_type in ATTENTION:
            batches = {k: 0 for k, source in enumerate(node.inputs) if source is not None and self._has_batch(source)}
        if rows is None or batches is None or not (rows or node.op_type == "Expand"):
            return None
        if node.op_type in RESIZING and shape_plan(self.shapes, node, {row: self.count}) is None:
            return None
        read = {position: Operand() for position, operand in enumerate(node.inputs) if operand is not None}
        for position, axis in rows.items():
            operand = node.inputs[position]
            if operand is not None and position in batches:
                read[position] = Operand(axes=(axis, batches[position]))
            elif operand is not None and node.op_type in ALIGNED and self._broadcasts(value, operand, axes, axis):
                read[position] = Operand(shared_rows=axis)
            else:
                return None
        for position in batches.keys() - rows.keys():
            read[position] = Operand(batch=batches[position])
        return read

    def _has_batch(self, value: ir.Value) -> bool:
        """Whether the first axis of an input of an attention is the choice's batch."""
        dims = self.shapes.dims(value)
        return len(dims) > 2 and same(dims[0], self.shapes.dims(self.choice.whole)[0])

    def _broadcasts(self, value: ir.Value, operand: ir.Value, axes: RowAxes, row: int) -> bool:
        """Whether the axis `row` of an operand meets the rows of `value`, and the operand is the same for the batch."""
        new_axes = self.shapes.rank(value) - self.shapes.rank(operand)
        batch = axes[1] - new_axes
        return row + new_axes == axes[0] and (batch < 0 or same(self.shapes.dims(operand)[batch], 1))

    def _chosen_rows(self, value: ir.Value, axes: RowAxes) -> ir.Value:
        """The chosen rows of a value: computed by a hoisted operator, or else gathered."""
        if (value, axes) not in self.built:
            producer = value.producer() if self.hoisted.get(value) == axes else None
            self.built[value, axes] = self._compute(producer, value, axes) if producer else self._gather(value, axes)
        return self.built[value, axes]

    def _compute(self, node: ir.Node, value: ir.Value, axes: RowAxes) -> ir.Value:
        read = self._read(node, value, axes) or {}
        source = node.inputs[0]
        if source is not None and node.op_type in RESIZING:
            rows = self._read_operand(value, source, read[0])
            return self.sizes.resized(node, rows, {axes[0]: self.count})
        if node not in self.copies:
            parts = [
                None if operand is None else self._read_operand(value, operand, read[k])
                for k, operand in enumerate(node.inputs)
            ]
            self.copies[node] = self.nodes.copy(node, parts, "rows")
        return self.copies[node].outputs[value.index() or 0]

    def _read_operand(self, value: ir.Value, source: ir.Value, operand: Operand) -> ir.Value:
        """What a hoisted operator reads of its input `source` to compute the chosen rows of `value`."""
        if operand.axes is not None:
            return self._chosen_rows(source, operand.axes)
        if operand.shared_rows is not None:
            return self._gather_shared(source, operand.shared_rows, value)
        if self.texts is None or operand.batch is None:
            return source
        return self.nodes.gather(source, self.texts, operand.batch)

    def _gather(self, value: ir.Value, axes: RowAxes) -> ir.Value:
        """The chosen rows by GatherND of (batch, rows, ...), with the axes in the value's order."""
        row, batch = axes
        order = [batch, row, *(axis for axis in range(self.shapes.rank(value)) if axis not in axes)]
        nodes, indices, batch_dims = self.nodes, self.nodes.unsqueeze(self.rows, [2]), 1
        if self.texts is not None:
            pairs = [nodes.reshape(self.texts, [-1, 1, 1]), indices]
            indices, batch_dims = nodes.add("Concat", pairs, axis=2), 0
        batch_first = nodes.transpose(value, order)
        chosen = nodes.add("GatherND", [batch_first, indices], batch_dims=batch_dims)
        return nodes.transpose_back(chosen, order)

    def _gather_shared(self, source: ir.Value, row: int, value: ir.Value) -> ir.Value:
        """The chosen rows of a value without a batch. They differ between texts, so the result has `value`'s batch."""
        nodes, rank, batch = self.nodes, self.shapes.rank(value), self.hoisted[value][1]
        new_axes = rank - self.shapes.rank(source)
        row = row + new_axes
        rows = nodes.gather(nodes.unsqueeze(source, range(new_axes)), self.rows, row)  # (..., batch, rows, ...)
        rows = nodes.squeeze(rows, [batch if batch < row else batch + 1])
        order = [k for axis in range(rank) if axis != batch for k in ((batch, row) if axis == row else (axis,))]
        return nodes.transpose_back(rows, order)

    def _indices(self) -> tuple[ir.Value | None, ir.Value]:
        """The texts (batch) of the chosen rows and their indices in the text (batch, rows), INT64.

        The texts are None if every text chooses rows of its own. An index among the rows of all texts may be negative
        or too large: the Gather from a Range makes it positive, or fails as the original's does.
        """
        nodes, flat = self.nodes, self.choice.flat
        if flat is None:
            chosen = nodes.cast(self.choice.chosen, INT64)
            is_matrix = self.choice.count is None or self.shapes.rank(self.choice.chosen) < 3
            return None, nodes.reshape(chosen, [-1, 1]) if is_matrix else nodes.squeeze(chosen, [2])
        batch, rows = (self.sizes.vector([dim]) for dim in self.shapes.dims(self.choice.whole)[:2])
        end = nodes.scalar_of(nodes.add("Mul", [batch, rows]))
        indices = nodes.gather(nodes.range(end), nodes.reshape(flat, [-1]))
        texts, rows_in_text = (nodes.add(operator, [indices, rows]) for operator in ("Div", "Mod"))
        return texts, nodes.reshape(rows_in_text, [-1, 1])
