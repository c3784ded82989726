"""Shapes of a graph's values as integers and expressions in its free dimensions.

In: a graph after `shape_inference.infer`. Out: `Shapes`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property

import onnx_ir as ir

from export.compiler.errors import Refused
from export.compiler.graph.constants import integers

Dim = int | ir.SymbolicDim

WHOLE_NUMBERS = {ir.DataType.INT32, ir.DataType.INT64}

# Sizes at which equal expressions have equal values; the longer ones show Min(512, n) - n.
TRIED = ((3, 5, 7, 11, 13), (10_007, 10_009, 10_037, 10_039, 10_061))

NOMINAL = 64  # of a free dimension where no sizes are given
FAR = (1 << 31) - 1  # the end of every axis; exporters write this or larger numbers


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


def same(left: Dim, right: Dim) -> bool:
    left, right = number(left), number(right)
    if isinstance(left, int) or isinstance(right, int):
        return isinstance(left, int) and isinstance(right, int) and left == right
    if left.value is None or right.value is None:
        return False
    return left.value == right.value or _equal(left.value, right.value)


def same_shape(left: Sequence[Dim], right: Sequence[Dim]) -> bool:
    return len(left) == len(right) and all(map(same, left, right))


def agree(size: Dim, other: Dim) -> bool:
    """Whether two axes that meet have one size in every graph that runs.

    A table of 512 positions cut to n tokens has min(512, n) rows: n, or too few to be added to n tokens.
    """
    if same(size, other):
        return True
    clipped = re.fullmatch(r"Min\((\d+), (.+)\)", str(number(other)))
    return clipped is not None and int(clipped[1]) > 1 and str(number(size)) == clipped[2]


@cache
def _equal(left: str, right: str) -> bool:
    try:
        apart = ir.SymbolicDim(left) - ir.SymbolicDim(right)
        symbols = sorted(apart.free_symbols())
        if not symbols:
            return apart.value == "0"
        tried = [dict(zip(symbols, sizes, strict=False)) for sizes in TRIED if len(symbols) <= len(sizes)]
        if any(apart.evaluate(sizes) != 0 for sizes in tried):
            return False  # most are; to simplify takes long
        return apart.simplify().value == "0"
    except ValueError:  # onnx_ir reads fewer functions than inference writes: no ceiling
        return False


def number(dim: Dim) -> Dim:
    if isinstance(dim, int):  # first: isinstance of a SymbolicDim takes 20 times as long
        return dim
    return int(dim.value) if dim.value and dim.value.isdigit() else dim


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
    return max(value, 1) if isinstance(value, int) else default


@dataclass
class Shapes:
    """After `infer`; `sizes` of the symbols serve to count costs."""

    graph: ir.Graph
    sizes: Mapping[str, int] = field(default_factory=dict)

    def shape(self, value: ir.Value) -> ir.Shape:
        """Raises Refused if the rank is unknown, as all that follows from it."""
        if value.shape is None:
            raise Refused.of(value, "its shape does not follow from the graph")
        return value.shape

    def dims(self, value: ir.Value) -> tuple[Dim, ...]:
        return tuple(map(number, self.shape(value).dims))

    def rank(self, value: ir.Value) -> int:
        return len(self.shape(value))

    def static(self, value: ir.Value, axis: int) -> int | None:
        dim = number(self.shape(value)[axis])
        return dim if isinstance(dim, int) else None

    def nominal(self, dim: Dim) -> int:
        """With symbols set to `sizes`; one that is unknown is taken for the longest."""
        longest = max(self.sizes.values(), default=NOMINAL)
        return dim if isinstance(dim, int) else _evaluate(dim, tuple(sorted(self.sizes.items())), longest)

    def is_sized(self, value: ir.Value | None) -> bool:
        """Whether the sizes of the graph's inputs give its shape."""
        if value is None:
            return True
        return value.shape is not None and _symbols([value]) <= self._sized

    @cached_property
    def _sized(self) -> set[str]:
        return self.sizes.keys() | _symbols(self.graph.inputs)

    def is_known(self, dim: Dim) -> bool:
        """Whether the graph's inputs have this size."""
        return isinstance(dim, int) or self.source(dim) is not None

    def times(self, dim: Dim, unit: Dim) -> int | None:
        """How many free sizes `unit` it is, as texts and heads on a single axis; None of another size."""
        if isinstance(dim, int) or isinstance(unit, int):
            return None
        each = Shapes(self.graph, {str(unit): 1}).nominal(dim)
        return each if same(dim, unit * each) else None

    def more(self, dim: Dim, unit: Dim) -> int:
        """By how much it is more than the free size `unit`; 0 of another size."""
        if isinstance(dim, int) or isinstance(unit, int):
            return 0
        more = Shapes(self.graph, {str(unit): 1}).nominal(dim) - 1
        return more if same(dim, unit + more) else 0

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


def _symbols(values: Iterable[ir.Value]) -> set[str]:
    dims = [dim for value in values if value.shape is not None for dim in value.shape.dims]
    return {symbol for dim in dims if not isinstance(dim, int) for symbol in _free(dim)}


@cache
def _free(dim: ir.SymbolicDim) -> frozenset[str]:
    return dim.free_symbols()


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
            # An axis of 1 says nothing, so another joins its run, whatever a free axis is taken for.
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
