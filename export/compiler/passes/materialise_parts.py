"""Builds the parts of values that are read.

In: the demands of `demand.analyse`. Out: a graph that computes only those parts. Each box of a value is built once;
readers of less select it with Gather or Slice.
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
from export.compiler.graph.shapes import FAR, Dim, Shapes, slices
from export.compiler.operators.boxes import WHOLE, Box, box, covers
from export.compiler.operators.data_movement import ALWAYS, indices_of, shape_plan
from export.compiler.operators.table import RESIZING, demand_of

LARGEST_HELD = 1 << 16  # elements of a part of a constant; a larger part is cut out at each use


class Materialiser:
    """Call `run` once."""

    def __init__(self, shapes: Shapes, demands: Demands) -> None:
        self.shapes, self.graph, self.demands = shapes, shapes.graph, demands
        self.constants = Constants(shapes.graph)
        self.nodes = Nodes(self.constants, put=shapes.graph.append)
        self.sizes = Sizes(shapes, self.nodes)
        self._built: dict[tuple[ir.Value, Box], ir.Value] = {}
        self._selected: dict[tuple[ir.Value, Box], ir.Value] = {}
        self._whole: dict[ir.Value, ir.Value] = {}
        self._emitted: dict[tuple[ir.Node, Box, tuple[ir.Value | None, ...]], ir.Node] = {}

    def run(self) -> None:
        """Replaces nodes whose inputs are partly computed; the caller removes unused nodes."""
        nodes = list(self.graph)
        for node in nodes:
            if node.op_type == "Shape" and node.domain == "":
                self._shape(node)
                continue
            for index, output in enumerate(node.outputs):
                if self.demands.get(output) == WHOLE_VALUE:
                    self._join(node, index, output)
                    continue
                for held in self.demands.get(output, ()):  # in order: `part` would go as deep as the graph
                    self._build(output, held)
        for node in nodes:  # last: the parts of a Split are built from its first input
            self._rewire(node)
        for output in list(self.graph.outputs):
            if output in self._whole:
                new = self.nodes.add("Identity", [self._whole[output]], output.dtype)
                self.constants.replace(output, new, "whole")

    def _join(self, node: ir.Node, index: int, output: ir.Value) -> None:
        read = demand_of(self.shapes, node, index, WHOLE).inputs
        if any(part != WHOLE and self._partial(node.inputs[position]) for position, part in read.items()):
            self._whole[output] = self._emit(node, output, WHOLE, read)

    def _rewire(self, node: ir.Node) -> None:
        for position, value in enumerate(node.inputs):
            if value is not None and value in self._whole:
                node.replace_input_with(position, self._whole[value])

    def _partial(self, value: ir.Value | None) -> bool:
        return value is not None and not is_constant(value) and self.demands[value] != WHOLE_VALUE

    def part(self, value: ir.Value, wanted: Box) -> ir.Value:
        boxes = [WHOLE] if is_constant(value) else self.demands[value]
        if boxes == WHOLE_VALUE:
            return self._select(self._whole.get(value, value), wanted, self._free(value))
        held = next(part for part in boxes if covers(part, wanted))
        places, relative = dict(held), {}
        for axis, chosen in wanted:
            if axis not in places:
                relative[axis] = chosen
            elif places[axis] != chosen:
                relative[axis] = tuple(places[axis].index(place) for place in chosen)
        return self._select(self._build(value, held), box(relative), self._free(value) - dict(held).keys())

    def _build(self, value: ir.Value, held: Box) -> ir.Value:
        if (value, held) not in self._built:
            node, index = value.producer(), value.index()
            if node is None or index is None:
                self._built[value, held] = self._select(value, held, self._free(value))
            else:
                read = demand_of(self.shapes, node, index, held).inputs
                self._built[value, held] = self._emit(node, value, held, read)
        return self._built[value, held]

    def _free(self, value: ir.Value) -> set[int]:
        return {axis for axis, dim in enumerate(self.shapes.dims(value)) if not isinstance(dim, int)}

    def _select(self, value: ir.Value, wanted: Box, free: Container[int]) -> ir.Value:
        if wanted == WHOLE:
            return value
        if (value, wanted) not in self._selected:
            selected = value
            if is_constant(value):
                selected = self._constant_part(value, wanted)
            else:
                for axis, chosen in wanted:
                    selected = self._cut(selected, axis, chosen, axis in free)
            self._selected[value, wanted] = selected
        return self._selected[value, wanted]

    def _constant_part(self, value: ir.Value, wanted: Box) -> ir.Value:
        def taken() -> Array:
            array = np.asarray(stored(value))
            for axis, chosen in wanted:
                array = np.take(array, chosen, axis=axis)
            return array

        name, dtype, dims = f"{value.name}_rows", value.dtype, self.shapes.dims(value)
        parts = dict(wanted)
        shape = [len(parts[axis]) if axis in parts else dim for axis, dim in enumerate(dims) if isinstance(dim, int)]
        if dtype in FLOATS and math.prod(shape) > LARGEST_HELD:
            return self.constants.add_computed(lambda: taken().astype(np.float64), shape, name, dtype)
        return self.constants.add(taken(), name, dtype)

    def _cut(self, value: ir.Value, axis: int, chosen: Sequence[int], free: bool) -> ir.Value:
        """Rows that a short input lacks are copies of its first or last; a reader of them guards itself."""
        nodes = self.nodes
        if not free and len(chosen) > 1 and list(chosen) == list(range(chosen[0], chosen[-1] + 1)):
            return nodes.cut(value, nodes.integers([chosen[0]]), nodes.integers([chosen[-1] + 1]), axis)
        places = nodes.integers(chosen)
        if free and not set(chosen) <= ALWAYS:
            size = nodes.sizes(value, [axis])
            last = nodes.add("Sub", [size, nodes.integers([1])])
            places = nodes.larger(nodes.add("Neg", [size]), nodes.smaller(places, last))
        return nodes.gather(value, places, axis)

    def _existing(self, rows: ir.Value, axis: int, start: int, size: Dim) -> ir.Value:
        """The rows of a Slice from `start` on that an axis of this size has."""
        nodes, length = self.nodes, self.sizes.vector([size])
        if start < 0:
            return nodes.cut(rows, nodes.add("Neg", [length]), nodes.integers([FAR]), axis)
        if start > 0:
            length = nodes.larger(nodes.add("Sub", [length, nodes.integers([start])]), nodes.integers([0]))
        return nodes.cut(rows, nodes.integers([0]), length, axis)

    def _guarded(self, row: ir.Value, axis: int, place: int, size: Dim) -> ir.Value:
        """No row if an axis of this size lacks `place`, so that the Gather of the row fails."""
        nodes = self.nodes
        end = nodes.add("Add", [self.sizes.vector([size]), nodes.integers([-place if place >= 0 else place + 1])])
        return nodes.cut(row, nodes.integers([0]), end, axis)

    def _emit(self, node: ir.Node, value: ir.Value, wanted: Box, read: Mapping[int, Box]) -> ir.Value:
        """The box `wanted` of `value`, computed from the boxes `read` of the node's inputs."""
        moved = self._moved(node, value, wanted, read)
        if moved is not None:
            return moved
        inputs = [
            self.part(given, read[position]) if given is not None and position in read else given
            for position, given in enumerate(node.inputs)
        ]
        key = node, wanted, tuple(inputs)
        if key not in self._emitted:  # several outputs may be read in the same part
            self._emitted[key] = self.nodes.copy(node, inputs, "rows")
            if wanted != WHOLE:  # of a causal Attention the row that sees every key
                self._emitted[key].attributes.pop("is_causal", None)
        return self._emitted[key].outputs[value.index() or 0]

    def _moved(self, node: ir.Node, value: ir.Value, wanted: Box, read: Mapping[int, Box]) -> ir.Value | None:
        """As `_emit`, for operators that move elements and whose attributes do not fit a part."""
        source = node.inputs[0]
        if source is None or node.domain:
            return None
        if node.op_type in ("Squeeze", "Unsqueeze") and axes_of(node) is not None:
            return None  # keeps its axes at any size; in a Reshape a size of 0 would copy another axis
        if node.op_type in RESIZING and wanted != WHOLE:
            operator = "Expand" if node.op_type == "Expand" else "Reshape"
            return self.nodes.add(operator, [self.part(source, read[0]), self._sizes(node, value, wanted)], value.dtype)
        if node.op_type == "Concat":
            parts = [
                self.part(given, read[k]) for k, given in enumerate(node.inputs) if given is not None and k in read
            ]
            along = {"axis": attribute_int(node, "axis", 0)}
            return parts[0] if len(parts) == 1 else self.nodes.add("Concat", parts, value.dtype, along)
        if node.op_type == "Split":
            return self.part(source, read[0])
        if node.op_type == "Slice":
            cuts = slices(node, self.shapes.rank(source)) or {}
            held = cuts.keys() & dict(read[0]).keys()
            rows = self.part(source, read[0]) if held else None
            for axis in sorted(held - dict(wanted).keys()):
                if rows is not None and not isinstance(self.shapes.dims(value)[axis], int):
                    rows = self._existing(rows, axis, cuts[axis][0], self.shapes.dims(source)[axis])
            return rows
        if node.op_type == "Gather" and (places := indices_of(self.shapes, node)) is not None:
            row = self.part(source, read[0])
            if node.inputs[1] is not None and self.shapes.rank(node.inputs[1]):
                return row
            axis = attribute_int(node, "axis", 0) % self.shapes.rank(source)
            size = self.shapes.dims(source)[axis]
            if not isinstance(size, int) and not {*places} <= ALWAYS:
                row = self._guarded(row, axis, places[0], size)
            return self.nodes.gather(row, self.nodes.scalar(0), axis)
        return None

    def _sizes(self, node: ir.Node, value: ir.Value, wanted: Box) -> ir.Value:
        return self.sizes.vector(shape_plan(self.shapes, node, value, {axis: len(rows) for axis, rows in wanted}) or [])

    def _shape(self, node: ir.Node) -> None:
        """Rebuilds a Shape whose value is not computed whole."""
        value, output = node.inputs[0], node.outputs[0]
        if value is None or output not in self.demands or value.producer() is None or is_constant(value):
            return
        if self.demands.get(value) == WHOLE_VALUE:
            return
        self._whole[output] = self.sizes.vector(sizes_read(self.shapes, node))
