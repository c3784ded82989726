"""Shapes of a graph's values as integers and expressions in its free dimensions.

In: a graph with a symbol for each free dimension of its inputs. Out: `Shapes`. Inference (onnx_shape_inference) ignores
the file's own names for inner dimensions: they may be wrong.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache

import onnx_ir as ir
from onnx_shape_inference import SYM_DATA_KEY, ShapeInferenceContext, infer_symbolic_shapes, registry

from export.onnx_rewrites.errors import NotSupported, Refused

Dim = int | ir.SymbolicDim

NOMINAL = 64  # of a free dimension without a given size
WITHIN = "vitbn.within"  # marks rows that exist in every input


def infer(model: ir.Model) -> None:
    """Sets the shape and dtype of every value, and the elements of known integers."""
    kept = {id(value) for value in (*model.graph.inputs, *model.graph.initializers.values())}
    for node in model.graph:
        for value in node.outputs:
            if id(value) not in kept:
                value.shape = None
                value.const_value = None
            value.metadata_props.pop(SYM_DATA_KEY, None)
    logging.getLogger("onnx_shape_inference").setLevel(logging.ERROR)
    try:
        infer_symbolic_shapes(model, warn_on_missing=False, adopt_declared_symbols=False)
    except ValueError as error:  # the base class of all its errors
        raise NotSupported(f"shapes: expected a graph that fits together, found {error}") from error


registry.collect()
_library_slice = registry.get("", "Slice", version=10)


def _slice(context: ShapeInferenceContext, node: ir.Node) -> None:
    """The library takes [:, :512] of a free axis for 512 rows, however short the axis is."""
    source, rows = node.inputs[0], node.outputs[0]
    if _library_slice is not None:
        _library_slice(context, node)
    if WITHIN not in rows.meta and source is not None and source.shape is not None and rows.shape is not None:
        pairs = zip(source.shape.dims, rows.shape.dims, strict=True)
        rows.shape = ir.Shape([context.new_symbolic_dim() if _cut(old, new) else new for old, new in pairs])


def _cut(old: Dim, new: Dim) -> bool:
    """Whether a short axis would leave less than `new`; a size is at least 1."""
    return isinstance(old, ir.SymbolicDim) and isinstance(new, int) and new > 1


registry.register("", "Slice", since_version=10)(_slice)


def same(left: Dim, right: Dim) -> bool:
    left, right = _number(left), _number(right)
    if isinstance(left, int) or isinstance(right, int):
        return isinstance(left, int) and isinstance(right, int) and left == right
    if left.value is None or right.value is None:
        return False
    return left.value == right.value or _equal(left.value, right.value)


@cache
def _equal(left: str, right: str) -> bool:
    try:
        return (ir.SymbolicDim(left) - ir.SymbolicDim(right)).simplify().value == "0"
    except ValueError:  # onnx_ir reads fewer functions than inference writes: no ceiling
        return False


def _number(dim: Dim) -> Dim:
    return int(dim.value) if isinstance(dim, ir.SymbolicDim) and dim.value and dim.value.isdigit() else dim


def product(dims: Sequence[Dim]) -> Dim:
    total: Dim = 1
    for dim in dims:
        total = dim if isinstance(total, int) and total == 1 else total * dim
    return total


@cache
def _evaluate(dim: ir.SymbolicDim, sizes: tuple[tuple[str, int], ...], default: int) -> int:
    known = dict(sizes)
    try:
        value = dim.evaluate({symbol: known.get(symbol, default) for symbol in dim.free_symbols()})
    except ValueError:  # as above
        return default
    return value if isinstance(value, int) and value > 0 else default


@dataclass
class Shapes:
    """After `infer`; `sizes` of the symbols serve to count costs."""

    graph: ir.Graph
    sizes: Mapping[str, int] = field(default_factory=dict)

    def dims(self, value: ir.Value) -> tuple[Dim, ...]:
        """Raises Refused if the rank is unknown."""
        if value.shape is None:
            raise Refused(value.name or "", operator(value), "its shape does not follow from the graph")
        return tuple(_number(dim) for dim in value.shape.dims)

    def rank(self, value: ir.Value) -> int:
        return len(self.dims(value))

    def static(self, value: ir.Value, axis: int) -> int | None:
        dim = self.dims(value)[axis]
        return dim if isinstance(dim, int) else None

    def nominal(self, dim: Dim) -> int:
        """With symbols set to `sizes`, by default NOMINAL."""
        return dim if isinstance(dim, int) else _evaluate(dim, tuple(sorted(self.sizes.items())), NOMINAL)

    def source(self, dim: Dim) -> tuple[ir.Value, int] | None:
        """A graph input and its axis of this size, if any."""
        for value in self.graph.inputs:
            for axis, size in enumerate(value.shape.dims if value.shape is not None else ()):
                if not isinstance(size, int) and same(size, dim):
                    return value, axis
        return None


def operator(value: ir.Value) -> str:
    producer = value.producer()
    return producer.op_type if producer is not None else "constant" if value.const_value is not None else "graph input"


def groups(shapes: Shapes, left: Sequence[Dim], right: Sequence[Dim]) -> list[tuple[list[int], list[int]]] | None:
    """Cuts the axes of two shapes into the smallest runs of equal product.

    (B, N, H*E) and (B, N, H, E) give [0]-[0], [1]-[1], [2]-[2, 3]. None if the products never meet again.
    """
    result: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(left) or j < len(right):
        run_i, run_j = ([i] if i < len(left) else []), ([j] if j < len(right) else [])
        i, j = i + len(run_i), j + len(run_j)
        while True:
            size_i, size_j = product([left[k] for k in run_i]), product([right[k] for k in run_j])
            if same(size_i, size_j):
                break
            if i < len(left) and (shapes.nominal(size_i) <= shapes.nominal(size_j) or j == len(right)):
                run_i.append(i)
                i += 1
            elif j < len(right):
                run_j.append(j)
                j += 1
            else:
                return None
        result.append((run_i, run_j))
    return result
