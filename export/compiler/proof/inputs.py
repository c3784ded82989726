"""Draws inputs for the proof, or reads the user's .npz file.

In: a graph with shapes. Out: sizes of its free dimensions, and arrays of these sizes by name. Floats are standard
normal, and uint8 covers all bytes. Integers that index a table stay below its number of rows. Other integers and
booleans are masks: ones, with up to half of every second row of integers, of every row of booleans, masked at its end,
so that every row keeps a token. In decoders every second row starts with masked tokens instead.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from zipfile import is_zipfile

import numpy as np
import onnx_ir as ir
from numpy.lib.npyio import NpzFile
from numpy.typing import NDArray

from export.compiler.errors import BadRequest, NotSupported
from export.compiler.graph.attributes import attribute_int
from export.compiler.graph.input_defaults import default
from export.compiler.graph.symbolic_shapes import is_symbol
from export.compiler.operators.table import Trait, operator_of
from export.compiler.proof.memory import free_memory
from export.compiler.proof.tolerances import size_of

Feeds = dict[str, NDArray[np.generic]]

# Sizes of first axes in the rounds of a family, and of other axes in each family; some networks accept only 224.
FIRST = (1, 2, 3)
OTHERS = ((5, 7, 11), (32, 48, 64), (64, 96, 160), (224, 256, 288), (224, 224, 224))

# (batch, new tokens, past tokens) of decoders: families of two rounds that must run, then further rounds.
DECODING = (((1, 5, 7), (2, 7, 0)), ((1, 5, 7), (2, 5, 3)), ((1, 32, 48), (2, 48, 32)), ((2, 1, 5), (1, 1, 9)))
MORE_DECODING = ((1, 1, 5), (2, 1, 7), (3, 1, 1), (2, 5, 1), (1, 5, 5), (2, 2, 2), (3, 5, 7), (1, 1, 0), (2, 33, 0))

MOST_CORNERS = 8
DRAWN = 8  # bytes of a drawn element, before the cast to its dtype

Sizes = dict[str, int]


def free_dimensions(graph: ir.Graph) -> list[str]:
    """The symbols of the inputs' free dimensions, those of first axes first."""
    shapes = [list(value.shape.dims) for value in graph.inputs if value.shape is not None]
    dims = [dims[0] for dims in shapes if dims] + [dim for dims in shapes for dim in dims[1:]]
    return list(dict.fromkeys(str(dim.value) for dim in dims if isinstance(dim, ir.SymbolicDim) and is_symbol(dim)))


def first_dimensions(graph: ir.Graph) -> set[str]:
    """The symbols of the inputs' first axes, usually the batch."""
    dims = [value.shape.dims[0] for value in graph.inputs if value.shape is not None and value.shape.rank()]
    return {str(dim.value) for dim in dims if isinstance(dim, ir.SymbolicDim)}


def channels(graph: ir.Graph) -> Sizes:
    """The sizes of dimensions that exporters declare free although the network determines them.

    These are the channels of a Conv's input, the features of a head in a decoder's cache, and the length of a cache
    with a fixed window.
    """
    sizes = {}
    for value in graph.inputs:
        if value.shape is None:
            continue
        for use in value.uses():
            if use.node.op_type == "Conv" and use.idx == 0 and value.shape.rank() > 1:
                channel_dim, weight = value.shape.dims[1], use.node.inputs[1]
                width = weight.shape.dims[1] if weight is not None and weight.shape is not None else None
                if isinstance(channel_dim, ir.SymbolicDim) and isinstance(width, int):
                    sizes[str(channel_dim.value)] = width * attribute_int(use.node, "group", 1)
            if use.node.op_type == "GroupQueryAttention" and use.idx in (3, 4):
                *_, length, features = value.shape.dims
                if isinstance(features, ir.SymbolicDim) and (size := _head_size(use.node)):
                    sizes[str(features.value)] = size
                if isinstance(length, ir.SymbolicDim) and attribute_int(use.node, "sliding_window_cache", 0):
                    sizes[str(length.value)] = attribute_int(use.node, "local_window_size", 1)
    return sizes


def _head_size(node: ir.Node) -> int | None:
    """The features of a head of GroupQueryAttention; None if the graph does not tell.

    The node's first input holds the queries or, without a second input, queries, keys and values.
    """
    query, heads = node.inputs[0], attribute_int(node, "num_heads", 1)
    features = query.shape.dims[-1] if query is not None and query.shape is not None else None
    count = heads if node.inputs[1] is not None else heads + 2 * attribute_int(node, "kv_num_heads", heads)
    return features // count if isinstance(features, int) else None


@dataclass(frozen=True)
class Family:
    """Sizes of every free dimension: for rounds that must run, and for more rounds, which may fail."""

    needed: list[Sizes]
    more: list[Sizes]


def size_rounds(graph: ir.Graph, fixed: Mapping[str, int] | None = None) -> Iterator[Family]:
    """Families of sizes to try in turn, from small to large, until the original answers one.

    In a family every dimension is once 1, every pair of dimensions is once equal, and in other rounds all differ.
    Dimensions other than first axes differ from each other in the first family of their sizes and are equal in the
    next, as inputs of equal length may give it different names. Decoders come first, with and without past tokens.
    The user's sizes `fixed` are kept in later families, at first only those of other than first axes.
    """
    symbols, first, determined = free_dimensions(graph), first_dimensions(graph), channels(graph)
    yield from _decoding(graph, determined | {**(fixed or {})})
    inner = {symbol: size for symbol, size in (fixed or {}).items() if symbol not in first}
    for constant in [
        determined,
        *([determined | inner] if inner else []),
        *([determined | {**fixed}] if fixed else []),
    ]:
        free = set(symbols) - first - constant.keys()
        for others in OTHERS:
            for step in (1, 0) if len(free) > 1 and len(set(others)) > 1 else (1,):
                rounds = [
                    {
                        symbol: FIRST[number]
                        if symbol in first
                        else others[(number + step * symbols.index(symbol)) % len(others)]
                        for symbol in symbols
                    }
                    | constant
                    for number in range(len(FIRST))
                ]
                usual = rounds[0] | dict.fromkeys(first - constant.keys(), FIRST[1])
                yield Family(rounds, _corners(usual, [symbol for symbol in symbols if symbol not in constant]))
            if not free:
                break


def _corners(usual: Sizes, free: list[str]) -> list[Sizes]:
    """`usual` with every free dimension once 1, and with every pair once equal; at most MOST_CORNERS."""
    single = [usual | {symbol: 1} for symbol in free if usual[symbol] != 1]
    pairs = [usual | {left: usual[right]} for left, right in combinations(free, 2) if usual[left] != usual[right]]
    return [*single, *pairs][:MOST_CORNERS]


def empty_sizes(graph: ir.Graph, usual: Sizes, fixed: Container[str]) -> list[Sizes]:
    """`usual` with every free dimension once 0, except those in `fixed`."""
    return [usual | {symbol: 0} for symbol in free_dimensions(graph) if symbol not in fixed and usual[symbol]]


def is_past(value: ir.Value) -> bool:
    """Whether an input is a decoder's cache of keys or values, by its name."""
    words = ("past", "cache", "key_value")
    floats = value.dtype is not None and value.dtype.is_floating_point()
    return floats and any(word in (value.name or "").lower() for word in words)


def past_dimensions(graph: ir.Graph) -> set[str]:
    """The free dimensions that only caches have, other than their first axis: the number of past tokens."""
    others = {str(dim) for value, dim in _inner(graph) if not is_past(value)}
    return {str(dim) for value, dim in _inner(graph) if is_past(value) and str(dim) in free_dimensions(graph)} - others


def _decoding(graph: ir.Graph, constant: Sizes) -> Iterator[Family]:
    """Families of a decoder with a cache: its mask covers past and new tokens, its other integers only new tokens."""
    if not any(is_past(value) and isinstance(dim, ir.SymbolicDim) for value, dim in _inner(graph)):
        return
    past = {str(dim) for value, dim in _inner(graph) if is_past(value)}
    total = {str(dim) for value, dim in _inner(graph) if "mask" in (value.name or "").lower()} - past

    def sizes(batch: int, new: int, old: int) -> Sizes:
        named = {symbol: batch if symbol in first_dimensions(graph) else new for symbol in free_dimensions(graph)}
        named |= dict.fromkeys(past & named.keys(), old)
        return named | dict.fromkeys(total & named.keys(), old + new) | constant

    for needed in DECODING:
        more = [sizes(*counts) for counts in MORE_DECODING if counts not in needed]
        yield Family([sizes(*counts) for counts in needed], more)


def _inner(graph: ir.Graph) -> list[tuple[ir.Value, int | ir.SymbolicDim]]:
    """All pairs of an input and one of its dimensions, without first axes."""
    return [(value, dim) for value in graph.inputs if value.shape is not None for dim in value.shape.dims[1:]]


def draw(graph: ir.Graph, sizes: Mapping[str, int], seed: int = 0, inverted: bool = False) -> Feeds:
    """An array for every input, by name, at these sizes. `inverted`: masks of booleans are true for hidden tokens.

    Raises NotSupported for an input that is not numeric, and for inputs larger than the free memory.
    """
    rng = np.random.default_rng(seed)
    feeds: Feeds = {}
    past = min((shape_of(value, sizes)[-2] for value in graph.inputs if is_past(value)), default=None)
    free = free_memory()
    for value in graph.inputs:
        shape = shape_of(value, sizes)
        if (free := free - DRAWN * math.prod(shape)) < 0:
            raise NotSupported(f"input {value.name!r}: expected a size that fits into memory, found {shape}")
        if value.dtype is None or value.dtype == ir.DataType.STRING:
            raise NotSupported(f"input {value.name!r}: expected numbers, found {value.dtype}")
        dtype = value.dtype.numpy()
        if (tensor := default(value)) is not None:
            feeds[value.name or ""] = _near(tensor.numpy(), seed, rng)
        elif value.dtype.is_floating_point():
            feeds[value.name or ""] = rng.standard_normal(shape).astype(dtype)
        elif value.dtype == ir.DataType.UINT8:
            feeds[value.name or ""] = rng.integers(0, 256, shape).astype(dtype)
        elif (rows := table_rows(value)) is not None:
            feeds[value.name or ""] = rng.integers(0, rows, shape).astype(dtype)
        elif past is not None and "position" in (value.name or "").lower() and shape:
            feeds[value.name or ""] = np.broadcast_to(np.arange(past, past + shape[-1]), shape).astype(dtype)
        elif past is not None:
            feeds[value.name or ""] = _left_padded(shape, past, rng).astype(dtype)
        elif value.dtype == ir.DataType.BOOL:
            feeds[value.name or ""] = np.asarray(_mask(shape, rng, step=1) == 1 - inverted)  # no scalar
        else:
            feeds[value.name or ""] = _mask(shape, rng, step=2).astype(dtype)
    return feeds


def _near(array: NDArray[np.generic], seed: int, rng: np.random.Generator) -> NDArray[np.generic]:
    """An input's default for even seeds; for odd seeds floats near the default."""
    if not seed % 2 or not np.issubdtype(array.dtype, np.floating):
        return array
    near = array.astype(np.float64) + 0.1 * size_of(array) * rng.standard_normal(array.shape)
    return np.asarray(near, array.dtype)  # the sum of arrays without axes is a scalar, not an array


def shape_of(value: ir.Value, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """The shape of a value at these sizes. Raises NotSupported for a dimension that they do not determine."""
    dims = value.shape.dims if value.shape is not None else ()
    return tuple(dim if isinstance(dim, int) else _size(dim, sizes) for dim in dims)


def _size(dim: ir.SymbolicDim, sizes: Mapping[str, int]) -> int:
    size = dim.evaluate({symbol: sizes[symbol] for symbol in dim.free_symbols()})
    if not isinstance(size, int):
        raise NotSupported(f"inputs: expected the size of {dim} to follow from the others, found none")
    return size


def _left_padded(shape: tuple[int, ...], past: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """A mask whose every second row starts with up to `past` zeros, so that no new token is masked."""
    mask = np.ones(shape, np.int64)
    for row in mask.reshape(-1, shape[-1])[1::2] if len(shape) > 1 and past and shape[-1] else ():
        row[: int(rng.integers(0, min(past, shape[-1] - 1) + 1))] = 0
    return mask


def _mask(shape: tuple[int, ...], rng: np.random.Generator, step: int) -> NDArray[np.int64]:
    """A mask of whose rows every `step`th ends with zeros, up to half of the row.

    Of bools every row does: PyTorch hides the tokens that are true, and a row of true alone would hide all.
    """
    mask = np.ones(shape, np.int64)
    if len(shape) > 1 and shape[-1] > 1:
        rows = mask.reshape(-1, shape[-1])
        for row in rows[::step]:
            row[shape[-1] - int(rng.integers(1, shape[-1] // 2 + 1)) :] = 0
    return mask


def table_rows(value: ir.Value) -> int | None:
    """The number of rows of the smallest table that the input indexes; None if it indexes none."""
    rows: list[int] = []
    waiting, seen = [value], {value}
    while waiting:
        for use in waiting.pop().uses():
            node, table = use.node, use.node.inputs[0]
            if node.op_type in ("Gather", "GatherElements") and use.idx == 1 and table is not None:
                axis = attribute_int(node, "axis", 0)
                size = table.shape.dims[axis] if table.shape is not None else None
                rows += [size] if isinstance(size, int) else []
            elif Trait.MOVES in operator_of(node).traits or node.op_type in ("Clip", "Concat"):
                waiting += [output for output in node.outputs if output not in seen]
                seen |= set(node.outputs)
    return min(rows, default=None)


def read_inputs(path: Path, graph: ir.Graph) -> Feeds:
    """The arrays of an .npz file by name; inputs that it lacks get their defaults.

    Raises BadRequest if the names, dtypes or ranks are not those of the graph's inputs.
    """
    names = [str(value.name) for value in graph.inputs]
    if not path.is_file() or not is_zipfile(path):  # opening a pipe would wait for a writer
        raise BadRequest(f"{path}: expected an .npz file of arrays, found another kind of file")
    try:
        with path.open("rb") as file:  # np.load leaves a damaged file open
            archive: NpzFile = np.load(file, allow_pickle=False)
            arrays = {name: np.asarray(archive[name]) for name in archive.files}
    except Exception as error:  # zipfile, zlib and numpy share no base class
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise BadRequest(f"{path}: expected an .npz file of arrays, found {reason}") from error
    defaults = {str(value.name): tensor.numpy() for value in graph.inputs if (tensor := default(value)) is not None}
    arrays = defaults | arrays
    if set(arrays) != set(names):
        raise BadRequest(f"{path}: expected the inputs {', '.join(names)}, found {', '.join(arrays)}")
    for value in graph.inputs:
        array = arrays[str(value.name)]
        if value.dtype is not None and array.dtype != value.dtype.numpy():
            expected = value.dtype.numpy()
            raise BadRequest(f"{path}: {value.name}: expected {expected}, found {array.dtype}")
        if value.shape is not None and value.shape.rank() != array.ndim:
            raise BadRequest(f"{path}: {value.name}: expected {value.shape.rank()} axes, found {array.ndim}")
    return arrays
