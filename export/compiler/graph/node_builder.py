"""Makes nodes for a graph, or for the body of a loop in it, under names that neither uses.

Each method adds nodes and returns the value that they compute. Operators that opsets write differently are written as
the graph's opset wants them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import groupby

import numpy as np
import onnx_ir as ir

from export.compiler.graph.constants import Constants, of_type

Attribute = int | Sequence[int] | ir.Attr
INT64, BOOL = ir.DataType.INT64, ir.DataType.BOOL


class Nodes:
    """A function `put` inserts each new node. By default the nodes wait in `list`, and the caller inserts them.

    Names begin with `prefix`, or else with the name of the first input.
    """

    def __init__(self, constants: Constants, prefix: str = "", put: Callable[[ir.Node], None] | None = None) -> None:
        self.constants, self.prefix = constants, prefix
        self.list: list[ir.Node] = []
        self._put = put or self.list.append
        self.opset = constants.graph.opset_imports.get("", 0)
        self._numbers: dict[tuple[int, ...] | int, ir.Value] = {}  # constants that were added before

    def add(
        self,
        operator: str,
        inputs: Sequence[ir.Value | None],
        shape: ir.Shape | None = None,
        /,
        **attributes: Attribute,
    ) -> ir.Value:
        """Makes a node with one output, and returns the output, whose dtype follows from operator and inputs."""
        node = ir.node(operator, inputs, attributes)
        node.outputs[0].shape = shape
        first = next((value.name for value in inputs if value is not None), operator)
        return self.put(node, f"{self.prefix or first}_{operator}", _dtype(node))

    def put(self, node: ir.Node, name: str, dtype: ir.DataType | None) -> ir.Value:
        """Inserts a node of the caller's, gives it and its output this name, and returns the output."""
        node.outputs[0].name = node.name = self.constants.name(name)
        self._put(node)
        return of_type(node.outputs[0], dtype)

    def copy(self, node: ir.Node, inputs: Sequence[ir.Value | None], suffix: str) -> ir.Node:
        """Inserts a copy of the node with other inputs. Outputs keep their dtypes; their names end in `suffix`."""
        new = ir.Node(node.domain, node.op_type, inputs, [*node.attributes.values()], num_outputs=len(node.outputs))
        for old_output, output in zip(node.outputs, new.outputs, strict=True):
            name = self.constants.name(f"{old_output.name}_{suffix}") if old_output.name else ""
            of_type(output, old_output.dtype).name = name
        new.name = self.constants.name(f"{node.outputs[0].name}_{node.op_type}")
        self._put(new)
        return new

    def integers(self, numbers: Sequence[int]) -> ir.Value:
        """A constant, INT64 [n]."""
        return self._number(tuple(numbers))

    def scalar(self, number: int) -> ir.Value:
        """A constant, INT64 []."""
        return self._number(number)

    def _number(self, content: tuple[int, ...] | int) -> ir.Value:
        if content not in self._numbers:
            self._numbers[content] = self.constants.add(np.array(content, np.int64), f"{self.prefix or 'rows'}_number")
        return self._numbers[content]

    def reshape(self, value: ir.Value, shape: Sequence[int | ir.Value]) -> ir.Value:
        """Each size of the shape is a number or a vector of length 1. The dtype stays."""
        return self.add("Reshape", [value, self.vector(shape)])

    def vector(self, sizes: Sequence[int | ir.Value]) -> ir.Value:
        """Joins numbers and vectors to one vector."""
        parts: list[ir.Value] = []
        for are_numbers, run in groupby(sizes, key=lambda size: isinstance(size, int)):
            run_sizes = [*run]
            numbers = [size for size in run_sizes if isinstance(size, int)]
            parts += [self.integers(numbers)] if are_numbers else [s for s in run_sizes if isinstance(s, ir.Value)]
        return parts[0] if len(parts) == 1 else self.add("Concat", parts, axis=0)

    def cast(self, value: ir.Value, dtype: ir.DataType) -> ir.Value:
        return value if value.dtype == dtype else self.add("Cast", [value], to=dtype.value)

    def sizes(self, value: ir.Value, axes: Sequence[int]) -> ir.Value:
        """The sizes of these axes when the graph runs, INT64 [number of axes]."""
        return self.gather(self.add("Shape", [value]), self.integers(axes))

    def gather(self, value: ir.Value, indices: ir.Value, axis: int = 0) -> ir.Value:
        return self.add("Gather", [value, indices], axis=axis)

    def unsqueeze(self, value: ir.Value, axes: Sequence[int]) -> ir.Value:
        """Adds no node without axes."""
        return self._along("Unsqueeze", value, axes) if axes else value

    def squeeze(self, value: ir.Value, axes: Sequence[int]) -> ir.Value:
        return self._along("Squeeze", value, axes)

    def scalar_of(self, value: ir.Value) -> ir.Value:
        """A vector of length 1 as a scalar."""
        return self.squeeze(value, [0])

    def sum(self, value: ir.Value, axis: int, keepdims: int) -> ir.Value:
        return self._along("ReduceSum", value, [axis], keepdims=keepdims)

    def mean(self, value: ir.Value, axes: Sequence[int], keepdims: int = 1) -> ir.Value:
        """The mean along these axes, which stay with size 1 by default."""
        return self._along("ReduceMean", value, axes, since=18, keepdims=keepdims)

    def _along(self, operator: str, value: ir.Value, axes: Sequence[int], since: int = 13, **more: int) -> ir.Value:
        """An operator whose axes are an input from opset `since` on, and an attribute before."""
        if self.opset < since:
            return self.add(operator, [value], axes=[*axes], **more)
        return self.add(operator, [value, self.integers(axes)], **more)

    def range(self, end: ir.Value) -> ir.Value:
        """0, 1, ..., `end` - 1, of a scalar `end`."""
        return self.add("Range", [self.scalar(0), end, self.scalar(1)])

    def larger(self, left: ir.Value, right: ir.Value) -> ir.Value:
        """The elementwise maximum; the operator Max takes integers only from opset 12 on."""
        return self.add("Where", [self.add("Less", [left, right]), right, left])

    def smaller(self, left: ir.Value, right: ir.Value) -> ir.Value:
        """The elementwise minimum; the operator Min takes integers only from opset 12 on."""
        return self.add("Where", [self.add("Less", [left, right]), left, right])

    def transpose(self, value: ir.Value, order: Sequence[int]) -> ir.Value:
        """Adds no node if the order of the axes stays."""
        if list(order) == sorted(order):
            return value
        return self.add("Transpose", [value], perm=[*order])

    def transpose_back(self, value: ir.Value, order: Sequence[int]) -> ir.Value:
        """The value, whose axes are those of an original in this order, with its axes in the original's order."""
        return self.transpose(value, [order.index(axis) for axis in sorted(order)])

    def cut(self, value: ir.Value, start: ir.Value, end: ir.Value, axis: int = 0) -> ir.Value:
        """The rows of an axis from `start` to before `end`, vectors of length 1."""
        return self.add("Slice", [value, start, end, self.integers([axis])])


def _dtype(node: ir.Node) -> ir.DataType | None:
    """The dtype of a new node's output; None if that of its inputs is unknown."""
    match node.op_type:
        case "And" | "Equal" | "Greater" | "IsNaN" | "Less" | "Or" | "Xor":
            return BOOL
        case "NonZero" | "Shape" | "Size":
            return INT64
        case "Cast":
            return ir.DataType(node.attributes["to"].as_int())
        case "Constant":
            return node.attributes["value"].as_tensor().dtype
    like = node.inputs[1 if node.op_type == "Where" else 0]
    return like.dtype if like is not None else None


def nodes_before(constants: Constants, node: ir.Node) -> Nodes:
    """Makes nodes that are inserted before `node`. Their names begin with the name of its first output."""
    return Nodes(constants, node.outputs[0].name or "", partial(constants.graph.insert_before, node))
