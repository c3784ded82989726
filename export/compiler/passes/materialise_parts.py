"""Rebuilds a graph so that it computes only the parts of values that are read.

In: the demands of `demand.analyse`, which say for every value the boxes (parts, see `boxes`) that are read. Out: nodes
that compute these boxes, every box once. A reader of less than a box selects its rows with Gather or Slice. For an
operator f whose output rows S depend on the rows R of its input alone:

    f(x)[S] = f(x[R])

Reads the rules of `table`. Refuses nothing by name: a rule that cannot tell the rows demands the entire input. Raises
NotSupported for a size that does not follow from the graph's inputs.
"""

from __future__ import annotations

import math
from collections.abc import Container, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from export.compiler.analyses.demand import WHOLE_VALUE, Demands, sizes_read
from export.compiler.graph.attributes import attribute_int, axes_of
from export.compiler.graph.constants import FLOATS, Array, Constants, is_constant, stored
from export.compiler.graph.node_builder import Nodes
from export.compiler.graph.runtime_sizes import Sizes
from export.compiler.graph.symbolic_shapes import FAR, Dim, Shapes, slices
from export.compiler.operators.boxes import WHOLE, Box, box, covers
from export.compiler.operators.data_movement import exist, indices_of
from export.compiler.operators.table import RESIZING, demand_of

LARGEST_STORED_PART = 1 << 16  # elements of a part of a constant; a larger part is computed at each use


class Materialiser:
    """Builds the boxes in `demands`, in the graph of `shapes`. Call `run` once."""

    def __init__(self, shapes: Shapes, demands: Demands) -> None:
        self.shapes, self.graph, self.demands = shapes, shapes.graph, demands
        self.constants = Constants(shapes.graph)
        self.nodes = Nodes(self.constants, put=shapes.graph.append)
        self.sizes = Sizes(shapes, self.nodes)
        self._built: dict[tuple[ir.Value, Box], ir.Value] = {}  # by original value and box
        self._selected: dict[tuple[ir.Value, Box], ir.Value] = {}  # by new value and box
        self._rebuilt: dict[ir.Value, ir.Value] = {}  # entire values, computed from parts of their node's inputs
        self._emitted: dict[tuple[ir.Node, Box, tuple[ir.Value | None, ...]], ir.Node] = {}

    def run(self) -> None:
        """Replaces nodes whose inputs are partly computed; the caller removes unused nodes."""
        nodes = list(self.graph)
        for node in nodes:
            if node.op_type == "Shape" and node.domain == "":
                self._rebuild_shape(node)
                continue
            for index, output in enumerate(node.outputs):
                if self.demands.get(output) == WHOLE_VALUE:
                    self._rebuild(node, index, output)
                    continue
                for demand in self.demands.get(output, ()):  # in order: `_part` would recurse as deep as the graph
                    self._build(output, demand)
        for node in nodes:  # last: the parts of a Split are built from its first input
            for position, value in enumerate(node.inputs):
                if value is not None and value in self._rebuilt:
                    node.replace_input_with(position, self._rebuilt[value])
        for output in list(self.graph.outputs):
            if output in self._rebuilt:
                new = self.nodes.add("Identity", [self._rebuilt[output]])
                self.constants.replace(output, new, "whole")

    def _rebuild(self, node: ir.Node, index: int, output: ir.Value) -> None:
        """Computes an entire output anew if the node reads only a part of an input that is computed in parts."""
        read = demand_of(self.shapes, node, index, WHOLE).inputs
        if any(part != WHOLE and self._is_in_parts(node.inputs[position]) for position, part in read.items()):
            self._rebuilt[output] = self._emit(node, output, WHOLE, read)

    def _is_in_parts(self, value: ir.Value | None) -> bool:
        return value is not None and not is_constant(value) and self.demands[value] != WHOLE_VALUE

    def _part(self, value: ir.Value, wanted: Box) -> ir.Value:
        """The box `wanted` of a value, selected from the box that is built."""
        boxes = [WHOLE] if is_constant(value) else self.demands[value]
        if boxes == WHOLE_VALUE:
            return self._select(self._rebuilt.get(value, value), wanted, self._free_axes(value))
        outer = next(part for part in boxes if covers(part, wanted))
        outer_rows, relative = dict(outer), {}
        for axis, rows in wanted:
            if axis not in outer_rows:
                relative[axis] = rows
            elif outer_rows[axis] != rows:
                relative[axis] = tuple(outer_rows[axis].index(row) for row in rows)
        return self._select(self._build(value, outer), box(relative), self._free_axes(value) - outer_rows.keys())

    def _build(self, value: ir.Value, demand: Box) -> ir.Value:
        """A box that is demanded of a value, computed by a copy of the value's node."""
        if (value, demand) not in self._built:
            node, index = value.producer(), value.index()
            if node is None or index is None:
                self._built[value, demand] = self._select(value, demand, self._free_axes(value))
            else:
                read = demand_of(self.shapes, node, index, demand).inputs
                self._built[value, demand] = self._emit(node, value, demand, read)
        return self._built[value, demand]

    def _free_axes(self, value: ir.Value) -> set[int]:
        return {axis for axis, dim in enumerate(self.shapes.dims(value)) if not isinstance(dim, int)}

    def _select(self, value: ir.Value, wanted: Box, free: Container[int]) -> ir.Value:
        """The rows `wanted` of a value that is computed. `free`: its axes of unknown size."""
        if wanted == WHOLE:
            return value
        if (value, wanted) not in self._selected:
            selected = value
            if is_constant(value):
                selected = self._constant_part(value, wanted)
            else:
                for axis, rows in wanted:
                    selected = self._take(selected, axis, rows, axis in free)
            self._selected[value, wanted] = selected
        return self._selected[value, wanted]

    def _constant_part(self, value: ir.Value, wanted: Box) -> ir.Value:
        """The box of a constant, as a new constant."""

        def part() -> Array:
            array = np.asarray(stored(value))
            for axis, rows in wanted:
                array = np.take(array, rows, axis=axis)
            return array

        name, dtype, dims = f"{value.name}_rows", value.dtype, self.shapes.dims(value)
        rows = dict(wanted)
        shape = [len(rows[axis]) if axis in rows else dim for axis, dim in enumerate(dims) if isinstance(dim, int)]
        if dtype in FLOATS and math.prod(shape) > LARGEST_STORED_PART:
            return self.constants.add_computed(lambda: part().astype(np.float64), shape, name, dtype)
        return self.constants.add(part(), name, dtype)

    def _take(self, value: ir.Value, axis: int, rows: Sequence[int], free: bool) -> ir.Value:
        """These rows of an axis. `free`: the size of the axis is known only in a call.

        An input may be shorter than a row's index. Then this gives its first or last row instead of an error. Readers
        that must not see such rows drop them: see `_existing_rows` and `_none_if_missing`.
        """
        nodes = self.nodes
        if not free and len(rows) > 1 and list(rows) == list(range(rows[0], rows[-1] + 1)):
            return nodes.cut(value, nodes.integers([rows[0]]), nodes.integers([rows[-1] + 1]), axis)
        indices = nodes.integers(rows)
        if free and not exist(rows, 0):
            size = nodes.sizes(value, [axis])
            last = nodes.add("Sub", [size, nodes.integers([1])])
            indices = nodes.larger(nodes.add("Neg", [size]), nodes.smaller(indices, last))
        return nodes.gather(value, indices, axis)

    def _existing_rows(self, rows: ir.Value, axis: int, start: int, size: Dim) -> ir.Value:
        """Of the rows that a Slice takes from `start` on, those that an axis of this size has."""
        nodes, length = self.nodes, self.sizes.vector([size])
        if start < 0:
            return nodes.cut(rows, nodes.add("Neg", [length]), nodes.integers([FAR]), axis)
        if start > 0:
            length = nodes.larger(nodes.add("Sub", [length, nodes.integers([start])]), nodes.integers([0]))
        return nodes.cut(rows, nodes.integers([0]), length, axis)

    def _none_if_missing(self, row: ir.Value, axis: int, index: int, size: Dim) -> ir.Value:
        """The row, or no row if an axis of this size lacks `index`: then the Gather behind fails, as the original's."""
        nodes = self.nodes
        end = nodes.add("Add", [self.sizes.vector([size]), nodes.integers([-index if index >= 0 else index + 1])])
        return nodes.cut(row, nodes.integers([0]), end, axis)

    def _emit(self, node: ir.Node, value: ir.Value, wanted: Box, read: Mapping[int, Box]) -> ir.Value:
        """The box `wanted` of `value`, computed from the boxes `read` of the node's inputs."""
        moved = self._emit_move(node, value, wanted, read)
        if moved is not None:
            return moved
        inputs = [
            self._part(operand, read[position]) if operand is not None and position in read else operand
            for position, operand in enumerate(node.inputs)
        ]
        key = node, wanted, tuple(inputs)
        if key not in self._emitted:  # the same box may be read of several outputs
            self._emitted[key] = self.nodes.copy(node, inputs, "rows")
            if wanted != WHOLE:  # of a causal Attention it is the last row, which sees every key
                self._emitted[key].attributes.pop("is_causal", None)
        return self._emitted[key].outputs[value.index() or 0]

    def _emit_move(self, node: ir.Node, value: ir.Value, wanted: Box, read: Mapping[int, Box]) -> ir.Value | None:
        """As `_emit`, for operators that move elements and whose attributes do not fit a part. None for others."""
        source = node.inputs[0]
        if source is None or node.domain:
            return None
        if node.op_type in ("Squeeze", "Unsqueeze") and axes_of(node) is not None:
            return None  # keeps its axes at any size; in a Reshape a size of 0 would copy another axis
        if node.op_type in RESIZING and wanted != WHOLE:
            counts = {axis: len(rows) for axis, rows in wanted}
            return self.sizes.resized(node, self._part(source, read[0]), counts)
        if node.op_type == "Concat":
            operands = [(operand, read[k]) for k, operand in enumerate(node.inputs) if k in read]
            parts = [self._part(operand, box_read) for operand, box_read in operands if operand is not None]
            along = {"axis": attribute_int(node, "axis", 0)}
            return parts[0] if len(parts) == 1 else self.nodes.add("Concat", parts, **along)
        if node.op_type == "Split":
            return self._part(source, read[0])
        if node.op_type == "Slice":
            cuts = slices(node, self.shapes.rank(source)) or {}
            cut_by_rows = cuts.keys() & dict(read[0]).keys()
            rows = self._part(source, read[0]) if cut_by_rows else None
            for axis in sorted(cut_by_rows - dict(wanted).keys()):
                if rows is not None and not isinstance(self.shapes.dims(value)[axis], int):
                    rows = self._existing_rows(rows, axis, cuts[axis][0], self.shapes.dims(source)[axis])
            return rows
        if node.op_type == "Gather" and (indices := indices_of(self.shapes, node)) is not None:
            row = self._part(source, read[0])
            if node.inputs[1] is not None and self.shapes.rank(node.inputs[1]):
                return row
            axis = attribute_int(node, "axis", 0) % self.shapes.rank(source)
            size = self.shapes.dims(source)[axis]
            if not isinstance(size, int) and not exist(indices, size):
                row = self._none_if_missing(row, axis, indices[0], size)
            return self.nodes.gather(row, self.nodes.scalar(0), axis)
        return None

    def _rebuild_shape(self, node: ir.Node) -> None:
        """Computes a Shape from the graph's inputs if the value whose shape it reads is not computed entirely."""
        value, output = node.inputs[0], node.outputs[0]
        if value is None or output not in self.demands or value.producer() is None or is_constant(value):
            return
        if self.demands.get(value) == WHOLE_VALUE:
            return
        self._rebuilt[output] = self.sizes.vector(sizes_read(self.shapes, node))
