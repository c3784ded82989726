"""Shapes of a graph's values. A size is an integer, or an expression in the free dimensions of the graph's inputs.

In: a graph after `shape_inference.infer`. Out: `Shapes`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from export.compiler.errors import Refused
from export.compiler.graph.constants import integers

Dim = int | ir.SymbolicDim

WHOLE_NUMBERS = {ir.DataType.INT32, ir.DataType.INT64}

# Sizes at which two expressions are evaluated before they are compared. The large sizes tell Min(512, n) from n.
SAMPLE_SIZES = ((3, 5, 7, 11, 13), (10_007, 10_009, 10_037, 10_039, 10_061))

NOMINAL = 64  # the size that a free dimension is taken for where the caller gives no sizes
FAR = 10**9  # as the end of a Slice: the end of the axis; tf2onnx writes this, other exporters larger numbers


def slices(node: ir.Node, rank: int) -> dict[int, tuple[int, int, int]] | None:
    """Of a Slice: axis -> (start, end, step); None if these are computed when the graph runs."""
    inputs = [*node.inputs[1:], None, None]
    starts, ends = integers(inputs[0]), integers(inputs[1])
    if starts is None or ends is None:
        return None
    axes = integers(inputs[2]) if inputs[2] is not None else list(range(len(starts)))
    steps = integers(inputs[3]) if inputs[3] is not None else [1] * len(starts)
    if axes is None or steps is None:
        return None
    return {axis % rank: cut for axis, cut in zip(axes, zip(starts, ends, steps, strict=True), strict=True)}


def same(left: Dim, right: Dim) -> bool:
    """Whether two sizes are equal whatever the free dimensions are."""
    left, right = number(left), number(right)
    if isinstance(left, int) or isinstance(right, int):
        return isinstance(left, int) and isinstance(right, int) and left == right
    if left.value is None or right.value is None:
        return False
    return left.value == right.value or _equal(left.value, right.value)


def same_shape(left: Sequence[Dim], right: Sequence[Dim]) -> bool:
    return len(left) == len(right) and all(map(same, left, right))


def agree(size: Dim, other: Dim) -> bool:
    """Whether two axes that an operator aligns have equal sizes whenever the graph runs without an error.

    A table of 512 positions that is cut to n tokens has Min(512, n) rows. An Add with n tokens fails unless that is n.
    """
    if same(size, other):
        return True
    clipped = re.fullmatch(r"Min\((\d+), (.+)\)", str(number(other)))
    return clipped is not None and int(clipped[1]) > 1 and str(number(size)) == clipped[2]


def is_symbol(dim: ir.SymbolicDim) -> bool:
    """Whether a dimension is a single symbol, not an expression such as a sum."""
    return dim.value in dim.free_symbols()


def bound_sizes(graph: ir.Graph, feeds: Mapping[str, NDArray[np.generic]]) -> dict[str, int]:
    """The sizes that arrays for all inputs, by name, give to the free dimensions."""
    return {
        str(dim.value): size
        for value in graph.inputs
        if value.shape is not None
        for dim, size in zip(value.shape.dims, feeds[value.name or ""].shape, strict=True)
        if isinstance(dim, ir.SymbolicDim) and is_symbol(dim)
    }


@cache
def _equal(left: str, right: str) -> bool:
    try:
        difference = ir.SymbolicDim(left) - ir.SymbolicDim(right)
        symbols = sorted(difference.free_symbols())
        if not symbols:
            return difference.value == "0"
        samples = [dict(zip(symbols, sizes, strict=False)) for sizes in SAMPLE_SIZES if len(symbols) <= len(sizes)]
        if any(difference.evaluate(sizes) != 0 for sizes in samples):
            return False  # so it is for most pairs; simplify is slow
        return difference.simplify().value == "0"
    except ValueError:  # inference writes functions that onnx_ir does not read: ceiling
        return False


def number(dim: Dim) -> Dim:
    """A symbolic size that is a plain number, as an integer; other sizes as they are."""
    if isinstance(dim, int):  # first: isinstance of a SymbolicDim takes 20 times as long
        return dim
    return int(dim.value) if dim.value and dim.value.isdigit() else dim


def least(size: Dim) -> int:
    """The smallest value of a size whose free dimensions may be 0: of N + 3 it is 3. 0 where that is not known."""
    if isinstance(size, int):
        return size
    if not re.fullmatch(r"[\w +*]+", size.value or ""):  # without a minus a larger dimension gives no smaller size
        return 0
    value = size.evaluate(dict.fromkeys(size.free_symbols(), 0))
    return value if isinstance(value, int) else 0


def product(dims: Sequence[Dim]) -> Dim:
    total: Dim = 1
    for dim in dims:
        total = dim if isinstance(total, int) and total == 1 else total * dim
    return total


def times(dim: Dim, unit: Dim) -> int | None:
    """The integer k with dim = k * unit whatever the free dimensions are; else None. An axis of batch * 12 gives 12."""
    if isinstance(unit, int):
        return dim // unit if isinstance(dim, int) and unit and dim % unit == 0 else None
    if isinstance(dim, int):
        return None
    factor = _sample(dim) // _sample(unit)
    return factor if same(dim, unit * factor) else None


def more(dim: Dim, unit: Dim) -> int:
    """The integer k with dim = unit + k, for two free sizes; else 0. An axis with a class token is 1 longer."""
    if isinstance(dim, int) or isinstance(unit, int):
        return 0
    difference = _sample(dim) - _sample(unit)
    return difference if difference > 0 and same(dim, unit + difference) else 0


def _sample(dim: ir.SymbolicDim) -> int:
    """The size with all its symbols set to NOMINAL."""
    return _evaluate(dim, (), NOMINAL)


@cache
def _evaluate(dim: ir.SymbolicDim, sizes: tuple[tuple[str, int], ...], default: int) -> int:
    """The size with its symbols set to `sizes`, other symbols to `default`; at least 1."""
    by_symbol = dict(sizes)
    try:
        value = dim.evaluate({symbol: by_symbol.get(symbol, default) for symbol in dim.free_symbols()})
    except ValueError:  # as in _equal
        return default
    return max(value, 1) if isinstance(value, int) else default


@dataclass
class Shapes:
    """Of a graph after `infer`. `sizes`: a size for each symbol, for estimates of cost."""

    graph: ir.Graph
    sizes: Mapping[str, int] = field(default_factory=dict)

    def shape(self, value: ir.Value) -> ir.Shape:
        """Raises Refused if the value's rank is unknown. So do `dims`, `rank` and `static`."""
        if value.shape is None:
            raise Refused.of(value, "its shape does not follow from the graph")
        return value.shape

    def dims(self, value: ir.Value) -> tuple[Dim, ...]:
        """The shape with integers for all sizes that are known numbers."""
        return tuple(map(number, self.shape(value).dims))

    def rank(self, value: ir.Value) -> int:
        return len(self.shape(value))

    def static(self, value: ir.Value, axis: int) -> int | None:
        """The size of an axis; None if it is free."""
        dim = number(self.shape(value)[axis])
        return dim if isinstance(dim, int) else None

    def nominal(self, dim: Dim) -> int:
        """The size with its symbols set to `sizes`. A symbol without a size gets the largest of `sizes`."""
        longest = max(self.sizes.values(), default=NOMINAL)
        return dim if isinstance(dim, int) else _evaluate(dim, tuple(sorted(self.sizes.items())), longest)

    def is_sized(self, value: ir.Value) -> bool:
        """Whether the value's shape follows from the sizes of the graph's inputs."""
        return value.shape is not None and _symbols([value]) <= self._sized_symbols

    @cached_property
    def _sized_symbols(self) -> set[str]:
        return self.sizes.keys() | _symbols(self.graph.inputs)

    def is_known(self, dim: Dim) -> bool:
        """Whether the size is a number or the size of an input's axis."""
        return isinstance(dim, int) or self.source(dim) is not None

    def is_positive(self, dim: Dim) -> bool:
        """Whether the size is never 0. A free size counts if an input of integers has it: there is at least one token.

        A size that only inputs of floats have may be 0: a decoder's cache of past tokens may be empty.
        """
        if isinstance(dim, int):
            return dim > 0
        shapes = [value.shape for value in self.graph.inputs if value.dtype in WHOLE_NUMBERS]
        return any(same(size, dim) for shape in shapes if shape is not None for size in shape.dims)

    def source(self, dim: Dim) -> tuple[ir.Value, int] | None:
        """An input of the graph and its axis that has this free size; None if there is none."""
        for value in self.graph.inputs:
            for axis, size in enumerate(value.shape.dims if value.shape is not None else ()):
                if not isinstance(size, int) and same(size, dim):
                    return value, axis
        return None


def _symbols(values: Iterable[ir.Value]) -> set[str]:
    """The symbols in the shapes of these values."""
    dims = [dim for value in values if value.shape is not None for dim in value.shape.dims]
    return {symbol for dim in dims if not isinstance(dim, int) for symbol in _free(dim)}


@cache
def _free(dim: ir.SymbolicDim) -> frozenset[str]:
    return dim.free_symbols()


def groups(shapes: Shapes, left: Sequence[Dim], right: Sequence[Dim]) -> list[tuple[list[int], list[int]]] | None:
    """Pairs runs of axes of two shapes, as short as possible, whose sizes have equal products.

    (B, N, H*E) and (B, N, H, E) give [0]-[0], [1]-[1], [2]-[2, 3]. None if the axes cannot be paired so.
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
            # A run of size 1 gets another axis first, whatever `nominal` takes a free axis for.
            short = not same(size_j, 1) and (same(size_i, 1) or shapes.nominal(size_i) <= shapes.nominal(size_j))
            if i < len(left) and (short or j == len(right)):
                run_i.append(i)
                i += 1
            elif j < len(right):
                run_j.append(j)
                j += 1
            else:
                return None
        result.append((run_i, run_j))
    return result
