"""Shapes of a graph's values as integers and expressions in its free dimensions.

In: a graph with a symbol for each free dimension of its inputs. Out: `Shapes`. Inference (onnx_shape_inference) ignores
the file's own names for inner dimensions: they may be wrong.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache

import onnx_ir as ir
from onnx_shape_inference import SYM_DATA_KEY, ShapeInferenceContext, infer_symbolic_shapes, registry

from export.onnx_rewrites.constants import integers
from export.onnx_rewrites.errors import NotSupported, Refused

Dim = int | ir.SymbolicDim

WHOLE_NUMBERS = {ir.DataType.INT32, ir.DataType.INT64}

NOMINAL = 64  # of a free dimension without a given size
FAR = (1 << 31) - 1  # the end of every axis; exporters write this or larger numbers
ARITHMETIC = "Add And BitwiseAnd BitwiseOr BitwiseXor Div Max Mean Min Mod Mul Or PRelu Pow Sub Sum Xor"
COMPARING = "Equal Expand Greater GreaterOrEqual Less LessOrEqual MatMul Where"


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
    """The library takes [:, :512] of a free axis for 512 rows, however short it is, and [:, -1:] for any number."""
    source, rows = node.inputs[0], node.outputs[0]
    if _library_slice is not None:
        _library_slice(context, node)
    if source is None or source.shape is None or rows.shape is None:
        return
    pairs = zip(source.shape.dims, rows.shape.dims, strict=True)
    dims = [context.new_symbolic_dim() if _cut(old, new) else new for old, new in pairs]
    for axis, (start, end, step) in (slices(node, len(dims)) or {}).items():
        if start == -1 and end >= FAR and step == 1 and isinstance(source.shape[axis], ir.SymbolicDim):
            dims[axis] = 1
    rows.shape = ir.Shape(dims)


def _cut(old: Dim, new: Dim) -> bool:
    """Whether a short axis would leave less than `new`; a size is at least 1."""
    return isinstance(old, ir.SymbolicDim) and isinstance(new, int) and new > 1


def slices(node: ir.Node, rank: int) -> dict[int, tuple[int, int, int]] | None:
    """Of a Slice: axis -> (start, end, step); None if unknown."""
    inputs = [*node.inputs[1:], None, None]
    starts, ends = integers(inputs[0]), integers(inputs[1])
    if starts is None or ends is None:
        return None
    axes = integers(inputs[2]) if inputs[2] is not None else list(range(len(starts)))
    steps = integers(inputs[3]) if inputs[3] is not None else [1] * len(starts)
    if axes is None or steps is None:
        return None
    return {axis % rank: cut for axis, cut in zip(axes, zip(starts, ends, steps, strict=True), strict=True)}


def _careful(library: Callable[[ShapeInferenceContext, ir.Node], None]) -> Callable[..., None]:
    """The library takes two free axes that meet for equal; either may be 1 and be broadcast to the other."""

    def infer_broadcast(context: ShapeInferenceContext, node: ir.Node) -> None:
        library(context, node)
        out = node.outputs[0]
        if out.shape is None:
            return
        operands = [[*value.shape.dims] for value in node.inputs if value is not None and value.shape is not None]
        if node.op_type == "Expand":
            operands = operands[:1]
        apart = 2 if node.op_type == "MatMul" else 0
        dims = list(out.shape.dims)
        for axis in range(len(dims) - apart):
            places = [axis - len(dims) + len(operand) for operand in operands]
            sizes = [operand[place] for operand, place in zip(operands, places, strict=True) if place >= 0]
            sizes += [dims[axis]] if node.op_type == "Expand" else []
            free = [size for size in sizes if isinstance(_number(size), ir.SymbolicDim)]
            if isinstance(_number(dims[axis]), ir.SymbolicDim) and free:
                longest = next((size for size in free if all(agree(size, other) for other in free)), None)
                dims[axis] = context.new_symbolic_dim() if longest is None else longest
        out.shape = ir.Shape(dims)

    return infer_broadcast


def _register() -> None:
    registry.register("", "Slice", since_version=10)(_slice)
    for name in [*ARITHMETIC.split(), *COMPARING.split()]:
        library = {version: registry.get("", name, version) for version in registry.version_boundaries("", name)}
        for version, function in library.items():
            if function is not None:
                registry.register("", name, since_version=version)(_careful(function))


_register()


def same(left: Dim, right: Dim) -> bool:
    left, right = _number(left), _number(right)
    if isinstance(left, int) or isinstance(right, int):
        return isinstance(left, int) and isinstance(right, int) and left == right
    if left.value is None or right.value is None:
        return False
    return left.value == right.value or _equal(left.value, right.value)


def agree(size: Dim, other: Dim) -> bool:
    """Whether two axes that meet have one size in every graph that runs.

    A table of 512 positions cut to n tokens has min(512, n) rows: n, or too few to be added to n tokens.
    """
    if same(size, other):
        return True
    clipped = re.fullmatch(r"Min\((\d+), (.+)\)", str(_number(other)))
    return clipped is not None and int(clipped[1]) > 1 and str(_number(size)) == clipped[2]


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

    def is_known(self, dim: Dim) -> bool:
        """Whether the graph's inputs have this size."""
        return isinstance(dim, int) or self.source(dim) is not None

    def is_positive(self, dim: Dim) -> bool:
        """Whether an input of integers has this size: of the others a cache may be empty."""
        if isinstance(dim, int):
            return dim > 0
        given = [value for value in self.graph.inputs if value.dtype in WHOLE_NUMBERS and value.shape is not None]
        return any(same(size, dim) for value in given if value.shape is not None for size in value.shape.dims)

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
