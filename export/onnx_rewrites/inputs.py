"""Draws inputs for the proof.

In: a graph with shapes. Out: sets of arrays of different sizes. Integers that index a table stay below its number of
rows. Other integers and booleans are masks: ones, with up to half of every second row masked at its end, so each row
keeps a token.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from export.onnx_rewrites.attributes import attribute_int
from export.onnx_rewrites.errors import NotSupported

Feeds = dict[str, NDArray[np.generic]]

PASSING = frozenset(
    {
        "Cast",
        "Clip",
        "Concat",
        "Expand",
        "Flatten",
        "Identity",
        "Reshape",
        "Slice",
        "Split",
        "Squeeze",
        "Transpose",
        "Unsqueeze",
    }
)

# Sizes of first axes and of others, per round; some networks accept only 224.
FIRST = (2, 3, 1)
OTHERS = ((5, 7, 11), (32, 48, 64), (64, 96, 160), (224, 256, 288), (224, 224, 224))


def free_dimensions(graph: ir.Graph) -> list[str]:
    """Symbols of first axes come first."""
    shapes = [list(value.shape.dims) for value in graph.inputs if value.shape is not None]
    dims = [dims[0] for dims in shapes if dims] + [dim for dims in shapes for dim in dims[1:]]
    return list(dict.fromkeys(str(dim.value) for dim in dims if isinstance(dim, ir.SymbolicDim)))


def bound_sizes(graph: ir.Graph, feeds: Feeds) -> dict[str, int]:
    """The sizes that `feeds` give to the free dimensions."""
    return {
        str(dim.value): size
        for value in graph.inputs
        if value.shape is not None
        for dim, size in zip(value.shape.dims, feeds[value.name or ""].shape, strict=True)
        if isinstance(dim, ir.SymbolicDim)
    }


def first_dimensions(graph: ir.Graph) -> set[str]:
    dims = [value.shape.dims[0] for value in graph.inputs if value.shape is not None and value.shape.rank()]
    return {str(dim.value) for dim in dims if isinstance(dim, ir.SymbolicDim)}


def channels(graph: ir.Graph) -> dict[str, int]:
    """The symbols that a Conv reads as channels (optimum declares them free) and their size."""
    known = {}
    for value in graph.inputs:
        for use in value.uses():
            weight = use.node.inputs[1] if use.node.op_type == "Conv" and use.idx == 0 else None
            own = value.shape.dims[1] if value.shape is not None and value.shape.rank() > 1 else None
            each = weight.shape.dims[1] if weight is not None and weight.shape is not None else None
            if isinstance(own, ir.SymbolicDim) and isinstance(each, int):
                known[str(own.value)] = each * attribute_int(use.node, "group", 1)
    return known


def size_rounds(graph: ir.Graph, fixed: Mapping[str, int] | None = None) -> Iterator[list[dict[str, int]]]:
    """Yields families: a size of every free dimension for each round.

    Dimensions other than first axes vary apart, then together: inputs of one length may name it differently. Later
    families keep `fixed`, at first without its first axes.
    """
    symbols, first, known = free_dimensions(graph), first_dimensions(graph), channels(graph)
    kept = {symbol: size for symbol, size in (fixed or {}).items() if symbol not in first}
    for held in [known, *([known | kept] if kept else []), *([known | {**fixed}] if fixed else [])]:
        free = set(symbols) - first - held.keys()
        for others in OTHERS:
            for apart in (1, 0) if len(free) > 1 and len(set(others)) > 1 else (1,):
                yield [
                    {
                        symbol: FIRST[number]
                        if symbol in first
                        else others[(number + apart * symbols.index(symbol)) % len(others)]
                        for symbol in symbols
                    }
                    | held
                    for number in range(len(FIRST))
                ]
            if not free:
                break


def draw(graph: ir.Graph, sizes: Mapping[str, int], seed: int = 0) -> Feeds:
    """Raises NotSupported for an input that is not numeric."""
    rng = np.random.default_rng(seed)
    feeds: Feeds = {}
    for value in graph.inputs:
        dims = value.shape.dims if value.shape is not None else ()
        shape = tuple(dim if isinstance(dim, int) else sizes[str(dim.value)] for dim in dims)
        if value.dtype is None or value.dtype == ir.DataType.STRING:
            raise NotSupported(f"input {value.name!r}: expected numbers, found {value.dtype}")
        dtype = value.dtype.numpy()
        if value.dtype.is_floating_point():
            feeds[value.name or ""] = rng.standard_normal(shape).astype(dtype)
        elif value.dtype == ir.DataType.UINT8:
            feeds[value.name or ""] = rng.integers(0, 256, shape).astype(dtype)
        elif (rows := table_rows(value)) is not None:
            feeds[value.name or ""] = rng.integers(0, rows, shape).astype(dtype)
        else:
            feeds[value.name or ""] = _mask(shape, rng).astype(dtype)
    return feeds


def _mask(shape: tuple[int, ...], rng: np.random.Generator) -> NDArray[np.int64]:
    mask = np.ones(shape, np.int64)
    if len(shape) > 1 and shape[-1] > 1:
        rows = mask.reshape(-1, shape[-1])
        for row in rows[::2]:
            row[shape[-1] - int(rng.integers(1, shape[-1] // 2 + 1)) :] = 0
    return mask


def table_rows(value: ir.Value) -> int | None:
    """Rows of the smallest table that the input indexes; None without a table."""
    rows: list[int] = []
    waiting, seen = [value], {value}
    while waiting:
        for use in waiting.pop().uses():
            node, table = use.node, use.node.inputs[0]
            if node.op_type in ("Gather", "GatherElements") and use.idx == 1 and table is not None:
                axis = attribute_int(node, "axis", 0)
                size = table.shape.dims[axis] if table.shape is not None else None
                rows += [size] if isinstance(size, int) else []
            elif node.op_type in PASSING:
                waiting += [output for output in node.outputs if output not in seen]
                seen |= set(node.outputs)
    return min(rows, default=None)
