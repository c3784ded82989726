"""The part of a graph's outputs that its user reads: `last_hidden_state[:,0]`.

In: a name and indices as in numpy's basic indexing. Out: a graph with only that output part, and the same part of an
array, for the proof.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from export.compiler.errors import BadRequest
from export.compiler.graph.constants import Constants
from export.compiler.graph.node_builder import BOOL, Nodes
from export.compiler.graph.shapes import same

Index = int | slice | tuple[int, ...]


@dataclass(frozen=True)
class Read:
    """Each index by itself, as in numpy.ix_; a tuple picks several."""

    output: str
    indices: tuple[Index, ...] = ()
    masked: bool = False  # rows that the mask hides are 0

    def of(self, array: NDArray[np.generic], mask: NDArray[np.generic] | None = None) -> NDArray[np.generic]:
        """Raises as `check`."""
        if self.masked and mask is not None:
            seen = mask.astype(bool).reshape(*mask.shape, *[1] * (array.ndim - mask.ndim))
            return np.where(seen, array, np.zeros((), array.dtype))
        self.check(array.shape)
        for axis, index in reversed(list(enumerate(self.indices))):
            array = array[(slice(None),) * axis + (list(index) if isinstance(index, tuple) else index,)]
        return np.asarray(array)

    def check(self, shape: Iterable[int | ir.SymbolicDim]) -> None:
        """Raises BadRequest if an array of this shape has no such part."""
        dims = list(shape)
        if len(self.indices) > len(dims) or not all(map(_has, dims, self.indices)):
            raise BadRequest(f"read: expected indices within the shape ({', '.join(map(str, dims))}), found {self}")

    def __str__(self) -> str:
        if self.masked:
            return f"{self.output}[mask]"
        return self.output + ("[" + ",".join(map(_text, self.indices)) + "]" if self.indices else "")


def parse_read(text: str) -> Read:
    """NAME, NAME[mask] or NAME[INDEX, ...], each index a number, START:END or [NUMBER, ...]; raises BadRequest."""
    match = re.fullmatch(r"(.+?)(?:\[((?:[^\[\]]|\[[^\[\]]*\])*)\])?", text.strip())
    if match is None:
        raise BadRequest(f"read: expected NAME or NAME[INDEX,...], found {text!r}")
    name, inside = match.groups()
    if inside is None:
        return Read(name)
    if inside.strip() == "mask":
        return Read(name, masked=True)
    parts = re.split(r",(?![^\[]*\])", inside)
    return Read(name, tuple(_index(part.strip(), text) for part in parts))


def _index(part: str, text: str) -> Index:
    match = re.fullmatch(r"(-?\d+)|(-?\d*):(-?\d*)|\[((?:\s*-?\d+\s*,)*\s*-?\d+)\s*,?\s*\]", part)
    if match is None:
        what = "expected a number, START:END or [NUMBER,...] between the brackets"
        raise BadRequest(f"read: {what}, found {part!r} in {text!r}")
    number, start, end, several = match.groups()
    if number is not None:
        return int(number)
    if several is not None:
        return tuple(int(each) for each in several.split(","))
    return slice(int(start) if start else None, int(end) if end else None)


def _has(size: int | ir.SymbolicDim, index: Index) -> bool:
    """Whether the index picks an element, of a free dimension at some size."""
    if isinstance(index, tuple):
        return all(_has(size, each) for each in index)
    rows = slice(index, index + 1 or None) if isinstance(index, int) else index
    if isinstance(index, int) and isinstance(size, int) and index < -size:
        return False
    sizes = (size,) if isinstance(size, int) else (1, sys.maxsize)
    return any(len(range(each)[rows]) > 0 for each in sizes)


def _text(index: Index) -> str:
    if isinstance(index, int):
        return str(index)
    if isinstance(index, tuple):
        return f"[{','.join(map(str, index))}]"
    return ":".join("" if end is None else str(end) for end in (index.start, index.stop))


def resolve(asked: Sequence[str | Read], graph: ir.Graph) -> list[Read]:
    """One read for each output that is kept, in the graph's order: '*' and 'present.*' keep outputs whole.

    Raises BadRequest as `parse_read`, and for an unknown or repeated output.
    """
    names = [str(value.name) for value in graph.outputs]
    reads = [parse_read(read) if isinstance(read, str) else read for read in asked]
    kept: dict[str, Read] = {}
    for read in [read for read in reads if read.output in names or not _is_pattern(read)]:
        if read.output not in names:
            raise BadRequest(f"read: expected one of the outputs {', '.join(names)}, found {read.output!r}")
        if read.output in kept:
            raise BadRequest("read: expected each output once, found an output twice")
        kept[read.output] = read
    for read in [read for read in reads if read.output not in names and _is_pattern(read)]:
        matching = [name for name in names if fnmatchcase(name, read.output)]
        if not matching:
            raise BadRequest(f"read: expected one of the outputs {', '.join(names)}, found none like {read.output!r}")
        kept = {name: Read(name) for name in matching} | kept
    return [kept[name] for name in names if name in kept]


def _is_pattern(read: Read) -> bool:
    return not read.indices and not read.masked and any(sign in read.output for sign in "*?")


def apply_reads(graph: ir.Graph, reads: Sequence[Read], mask: str | None = None) -> None:
    """`reads` are resolved. The names stay; raises BadRequest for parts outside the outputs, and ranges of tokens.

    `mask`: the input that hides tokens, of which a later pass leaves them out.
    """
    if not reads:
        return
    outputs = {value.name: value for value in graph.outputs}
    nodes = Nodes(Constants(graph), put=graph.append)
    hiding = next((given for given in graph.inputs if given.name == mask), None)
    chosen = [
        _seen(outputs[read.output], hiding, nodes) if read.masked else _part(outputs[read.output], read, nodes, hiding)
        for read in reads
    ]
    graph.outputs.clear()
    graph.outputs.extend(chosen)


def _part(value: ir.Value, read: Read, nodes: Nodes, mask: ir.Value | None) -> ir.Value:
    """With a `mask` a token by number stays a list of one: read-rows leaves it to the pass that picks of each text."""
    if value.shape is not None:
        read.check(value.shape)
    part, packed = value, mask is not None
    for axis, index in reversed(list(enumerate(read.indices))):
        if isinstance(index, slice):
            _check_tokens(value, axis, index, read, mask)
            if (index.start, index.stop) != (None, None):
                stop = np.iinfo(np.int64).max if index.stop is None else index.stop
                part = nodes.cut(part, nodes.integers([index.start or 0]), nodes.integers([stop]), axis)
        elif isinstance(index, tuple) or (packed and index not in (0, -1)):
            part = nodes.gather(part, nodes.integers([index] if isinstance(index, int) else index), axis)
            part = nodes.squeeze(part, [axis]) if isinstance(index, int) else part
        else:
            part = nodes.gather(part, nodes.scalar(index), axis)
    if part is not value:
        if value.is_graph_input():
            raise BadRequest(f"read: expected an output that a node computes, found the input {read}")
        value.name, part.name = nodes.constants.name(f"{value.name}_whole"), value.name
    return part


def _check_tokens(value: ir.Value, axis: int, rows: slice, read: Read, mask: ir.Value | None) -> None:
    """Raises BadRequest for a range of tokens: texts of other lengths have other tokens there."""
    if mask is None or mask.shape is None or value.shape is None or not same(value.shape[axis], mask.shape[-1]):
        return
    count = len(range(sys.maxsize)[rows])
    if 1 < count < sys.maxsize:
        raise BadRequest(f"read: expected tokens by number with --packed, as {read.output}[:,[-2,-1]], found {read}")


def _seen(value: ir.Value, mask: ir.Value | None, nodes: Nodes) -> ir.Value:
    """0 where the mask, an input, hides."""
    if mask is not None and value.shape is None:
        raise BadRequest(
            f"read: expected tokens in the output {value.name!r}, found that its shape does not follow from the graph"
        )
    if mask is None or mask.shape is None or value.shape is None or value.shape.rank() < mask.shape.rank():
        raise BadRequest(f"read: expected {value.name}[mask] with --packed MASK and tokens in that output")
    wide = nodes.reshape(mask, [0] * mask.shape.rank() + [1] * (value.shape.rank() - mask.shape.rank()))
    zero = nodes.constants.add(np.zeros((), (value.dtype or ir.DataType.FLOAT).numpy()), "zero", value.dtype)
    part = nodes.add("Where", [nodes.cast(wide, BOOL), value, zero], value.dtype)
    value.name, part.name = nodes.constants.name(f"{value.name}_whole"), value.name
    return part
