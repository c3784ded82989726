"""Reads a graph's constants as numpy arrays, and adds new constants.

A pass computes new weights in float64. The file holds them cast to the graph's dtype. `value.meta[EXACT]` is a function
that returns the float64 array, so that later passes and the proof do not read rounded weights.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

Array = NDArray[Any]
EXACT = "vitbn.exact"

FLOATS = {ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16, ir.DataType.BFLOAT16}
UNROUNDED = {ir.DataType.FLOAT, ir.DataType.DOUBLE}  # in half precision new weights would be rounded once more


def is_constant(value: ir.Value | None) -> bool:
    return value is not None and value.const_value is not None


def constant(value: ir.Value | None) -> Array | None:
    """The array of a constant, floats as float64; None for other values."""
    if value is None or value.const_value is None:
        return None
    if EXACT in value.meta:
        return doubles(value)
    array = value.const_value.numpy()
    return array.astype(np.float64) if value.const_value.dtype in FLOATS else array


def stored(value: ir.Value | None) -> NDArray[np.generic] | None:
    """The array of a constant in the file's dtype, or in float64 if a pass computed it; None for other values."""
    if value is None or value.const_value is None:
        return None
    return doubles(value) if EXACT in value.meta else value.const_value.numpy()


def doubles(value: ir.Value) -> NDArray[np.float64]:
    """The array of a constant as float64, not rounded if a pass computed it. Raises ValueError for other values."""
    exact: Callable[[], NDArray[np.float64]] | None = value.meta.get(EXACT)
    if exact is not None:
        return exact()
    if value.const_value is None:
        raise ValueError(f"{value.name}: expected a constant")
    return value.const_value.numpy().astype(np.float64)


def integers(value: ir.Value | None) -> list[int] | None:
    """The elements of a constant in one list; None for other values."""
    array = constant(value)
    return None if array is None else [int(number) for number in np.atleast_1d(array).ravel()]


def number(value: ir.Value | None) -> float | None:
    """The element of a constant that has a single element; None for other values."""
    is_single = value is not None and value.const_value is not None and value.const_value.size == 1
    array = constant(value) if is_single else None
    return float(array.reshape(-1)[0]) if array is not None else None


class Constants:
    """Adds constants to a graph, under names that no other value of the graph has."""

    def __init__(self, graph: ir.Graph) -> None:
        self.graph = graph
        self._names = {value.name for node in graph for value in node.outputs} | set(graph.initializers)
        self._names |= {value.name for value in graph.inputs}

    def name(self, base: str) -> str:
        """An unused name: `base`, with a number at its end if the graph has a value of this name."""
        name, count = base, 0
        while name in self._names:
            count += 1
            name = f"{base}_{count}"
        self._names.add(name)
        return name

    def add(self, array: NDArray[np.generic], base: str, dtype: ir.DataType | None = None) -> ir.Value:
        """A constant with this array, cast to `dtype`; by default in the array's own dtype."""
        array = np.asarray(array, order="C")  # np.ascontiguousarray would add an axis to a scalar
        name = self.name(base)
        tensor = ir.tensor(array if dtype is None else array.astype(dtype.numpy()), name=name)
        value = ir.Value(name=name, const_value=tensor, type=ir.TensorType(tensor.dtype), shape=ir.Shape(array.shape))
        if dtype in FLOATS and array.dtype == np.float64:
            value.meta[EXACT] = lambda: array
        self.graph.register_initializer(value)
        return value

    def add_computed(
        self, make: Callable[[], NDArray[np.float64]], shape: Sequence[int], base: str, dtype: ir.DataType
    ) -> ir.Value:
        """A constant whose array `make` computes at each use, so that memory holds one such weight at a time."""
        name = self.name(base)
        tensor = ir.LazyTensor(lambda: ir.tensor(make().astype(dtype.numpy())), dtype, ir.Shape(shape), name=name)
        value = ir.Value(name=name, const_value=tensor, type=ir.TensorType(dtype), shape=ir.Shape(shape))
        value.meta[EXACT] = make
        self.graph.register_initializer(value)
        return value

    def replace(self, old: ir.Value, new: ir.Value, suffix: str) -> None:
        """Lets all readers of `old` read `new`, except the node that computes `new` from `old`.

        If `new` has no shape it gets that of `old`. If `old` is an output of the graph, `new` becomes this output and
        takes its name; the name of `old` gets the suffix.
        """
        inputs_of_new = [use for use in old.uses() if use.node is new.producer()]
        if old.is_graph_output():
            new.name, old.name = old.name, self.name(f"{old.name}_{suffix}")
            new.type, new.shape = old.type, old.shape
        new.shape = old.shape if new.shape is None else new.shape
        ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)
        for use in inputs_of_new:
            use.node.replace_input_with(use.idx, old)

    def add_integers(self, numbers: list[int], base: str = "axes") -> ir.Value:
        return self.add(np.array(numbers, np.int64), base)

    def add_to_bias(self, value: ir.Value, bias: NDArray[np.float64], kept: Container[ir.Node] = ()) -> bool:
        """Adds the vector `bias` to the constant that an Add adds to `value`.

        False, and no change, unless such an Add is the only reader of `value` and not in `kept`.
        """
        uses = list(value.uses())
        if len(uses) != 1 or uses[0].node.op_type != "Add" or uses[0].node in kept or value.is_graph_output():
            return False
        add, position = uses[0].node, 1 - uses[0].idx
        old_bias = constant(add.inputs[position])
        if old_bias is None or old_bias.ndim > 1 or old_bias.size not in (1, bias.size):
            return False
        add.replace_input_with(position, self.add(old_bias + bias, f"{value.name}_bias", value.dtype))
        return True


def of_type(value: ir.Value, dtype: ir.DataType | None) -> ir.Value:
    if dtype is not None:
        value.dtype = dtype
    return value
