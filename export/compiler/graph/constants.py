"""Constants of a graph, and new constants.

In: values of an `onnx_ir` graph. Out: numpy arrays. New weights are cast once; `value.meta[EXACT]` returns the double
for later passes and the proof.
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


UNROUNDED = {ir.DataType.FLOAT, ir.DataType.DOUBLE}  # new weights in half would be rounded again


def is_constant(value: ir.Value | None) -> bool:
    return value is not None and value.const_value is not None


def constant(value: ir.Value | None) -> Array | None:
    """Floats as float64."""
    if value is None or value.const_value is None:
        return None
    if EXACT in value.meta:
        return doubles(value)
    array = value.const_value.numpy()
    return array.astype(np.float64) if value.const_value.dtype in FLOATS else array


def stored(value: ir.Value | None) -> NDArray[np.generic] | None:
    """In its own dtype, and in double only if a pass computed it so."""
    if value is None or value.const_value is None:
        return None
    return doubles(value) if EXACT in value.meta else value.const_value.numpy()


def doubles(value: ir.Value) -> NDArray[np.float64]:
    """Of a constant."""
    exact: Callable[[], NDArray[np.float64]] | None = value.meta.get(EXACT)
    if exact is not None:
        return exact()
    if value.const_value is None:
        raise ValueError(f"{value.name}: expected a constant")
    return value.const_value.numpy().astype(np.float64)


def integers(value: ir.Value | None) -> list[int] | None:
    array = constant(value)
    return None if array is None else [int(number) for number in np.atleast_1d(array).ravel()]


def number(value: ir.Value) -> float | None:
    array = constant(value)
    return float(array.reshape(-1)[0]) if array is not None and array.size == 1 else None


class Constants:
    """New constants of a graph, under names that are free in it."""

    def __init__(self, graph: ir.Graph) -> None:
        self.graph = graph
        self._names = {value.name for node in graph for value in node.outputs} | set(graph.initializers)
        self._names |= {value.name for value in graph.inputs}

    def name(self, base: str) -> str:
        name, count = base, 0
        while name in self._names:
            count += 1
            name = f"{base}_{count}"
        self._names.add(name)
        return name

    def add(self, array: NDArray[np.generic], base: str, dtype: ir.DataType | None = None) -> ir.Value:
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
        """Computed anew at each use: memory holds one such weight."""
        name = self.name(base)
        tensor = ir.LazyTensor(lambda: ir.tensor(make().astype(dtype.numpy())), dtype, ir.Shape(shape), name=name)
        value = ir.Value(name=name, const_value=tensor, type=ir.TensorType(dtype), shape=ir.Shape(shape))
        value.meta[EXACT] = make
        self.graph.register_initializer(value)
        return value

    def replace(self, old: ir.Value, new: ir.Value, suffix: str) -> None:
        """Readers of `old`, but not the node that makes `new`, read `new`, which takes its place among the outputs."""
        kept = [use for use in old.uses() if use.node is new.producer()]
        if old.is_graph_output():
            new.name, old.name = old.name, self.name(f"{old.name}_{suffix}")
            new.type, new.shape = old.type, old.shape
        ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)
        for use in kept:
            use.node.replace_input_with(use.idx, old)

    def add_integers(self, numbers: list[int], base: str = "axes") -> ir.Value:
        return self.add(np.array(numbers, np.int64), base)

    def add_to_bias(self, value: ir.Value, bias: NDArray[np.float64], kept: Container[ir.Node] = ()) -> bool:
        """Adds a vector to the bias in the Add that alone reads `value`; False without such an Add."""
        uses = list(value.uses())
        if len(uses) != 1 or uses[0].node.op_type != "Add" or uses[0].node in kept or value.is_graph_output():
            return False
        add, position = uses[0].node, 1 - uses[0].idx
        held = constant(add.inputs[position])
        if held is None or held.ndim > 1 or held.size not in (1, bias.size):
            return False
        add.replace_input_with(position, self.add(held + bias, f"{value.name}_bias", value.dtype))
        return True


def of_type(value: ir.Value, dtype: ir.DataType | None) -> ir.Value:
    if dtype is not None:
        value.dtype = dtype
    return value
