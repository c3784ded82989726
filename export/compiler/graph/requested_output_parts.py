"""The part of an output that its user reads, such as `last_hidden_state[:,0]`.

In: an output's name and indices, as in numpy's basic indexing. Out: the graph with only this part as its output; and
for the proof the same part of an array.
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
from export.compiler.graph.symbolic_shapes import same

Index = int | slice | tuple[int, ...]


@dataclass(frozen=True)
class Read:
    """An output and an index for each of its first axes. Axes are indexed independently, as in numpy.ix_.

    A tuple picks several rows. `masked`: the user reads all rows, but those that the mask hides are 0.
    """

    output: str
    indices: tuple[Index, ...] = ()
    masked: bool = False

    def of(self, array: NDArray[np.generic], mask: NDArray[np.generic] | None = None) -> NDArray[np.generic]:
        """This part of the output `array`. Raises BadRequest if the array has no such part."""
        if self.masked and mask is not None:
            visible = mask.astype(bool).reshape(*mask.shape, *[1] * (array.ndim - mask.ndim))
            return np.where(visible, array, np.zeros((), array.dtype))
        self.check(array.shape)
        for axis, index in reversed(list(enumerate(self.indices))):
            array = array[(slice(None),) * axis + (list(index) if isinstance(index, tuple) else index,)]
        return np.asarray(array)

    def check(self, shape: Iterable[int | ir.SymbolicDim]) -> None:
        """Raises BadRequest if an array of this shape has no such part."""
        dims = list(shape)
        if len(self.indices) > len(dims) or not all(map(_has_rows, dims, self.indices)):
            raise BadRequest(f"read: expected indices within the shape ({', '.join(map(str, dims))}), found {self}")

    def __str__(self) -> str:
        if self.masked:
            return f"{self.output}[mask]"
        return self.output + ("[" + ",".join(map(_index_text, self.indices)) + "]" if self.indices else "")


def parse_read(text: str) -> Read:
    """Reads NAME, NAME[mask] or NAME[INDEX, ...], where an index is a number, START:END or [NUMBER, ...].

    Raises BadRequest for other text.
    """
    match = re.fullmatch(r"(.+?)(?:\[((?:[^\[\]]|\[[^\[\]]*\])*)\])?", text.strip())
    if match is None:
        raise BadRequest(f"read: expected NAME or NAME[INDEX,...], found {text!r}")
    name, brackets = match.groups()
    if brackets is None:
        return Read(name)
    if brackets.strip() == "mask":
        return Read(name, masked=True)
    parts = re.split(r",(?![^\[]*\])", brackets)
    return Read(name, tuple(_parse_index(part.strip(), text) for part in parts))


def _parse_index(part: str, text: str) -> Index:
    match = re.fullmatch(r"(-?\d+)|(-?\d*):(-?\d*)|\[((?:\s*-?\d+\s*,)*\s*-?\d+)\s*,?\s*\]", part)
    if match is None:
        what = "expected a number, START:END or [NUMBER,...] between the brackets"
        raise BadRequest(f"read: {what}, found {part!r} in {text!r}")
    number, start, end, numbers = match.groups()
    if number is not None:
        return int(number)
    if numbers is not None:
        return tuple(map(int, numbers.split(",")))
    return slice(int(start) if start else None, int(end) if end else None)


def _has_rows(size: int | ir.SymbolicDim, index: Index) -> bool:
    """Whether the index picks a row of an axis of this size. Of a free axis: whether it does at some size.

    Of an empty axis, as of an empty batch, a slice takes all that is there.
    """
    if isinstance(index, slice) and size == 0:
        return True
    if isinstance(index, tuple):
        return all(_has_rows(size, number) for number in index)
    rows = slice(index, index + 1 or None) if isinstance(index, int) else index
    if isinstance(index, int) and isinstance(size, int) and index < -size:
        return False
    possible_sizes = (size,) if isinstance(size, int) else (1, sys.maxsize)
    return any(len(range(possible)[rows]) > 0 for possible in possible_sizes)


def _index_text(index: Index) -> str:
    """The index as a user writes it."""
    if isinstance(index, int):
        return str(index)
    if isinstance(index, tuple):
        return f"[{','.join(map(str, index))}]"
    return ":".join("" if end is None else str(end) for end in (index.start, index.stop))


def resolve(requests: Sequence[str | Read], graph: ir.Graph) -> list[Read]:
    """A read for each requested output, in the graph's order. A pattern such as 'present.*' requests entire outputs.

    Raises BadRequest for text that is no read, and for an unknown or repeated output.
    """
    names = [str(value.name) for value in graph.outputs]
    reads = [parse_read(request) if isinstance(request, str) else request for request in requests]
    by_output: dict[str, Read] = {}
    for read in [read for read in reads if read.output in names or not _is_pattern(read)]:
        if read.output not in names:
            raise BadRequest(f"read: expected one of the outputs {', '.join(names)}, found {read.output!r}")
        if read.output in by_output:
            raise BadRequest("read: expected each output once, found an output twice")
        by_output[read.output] = read
    for read in [read for read in reads if read.output not in names and _is_pattern(read)]:
        matching = [name for name in names if fnmatchcase(name, read.output)]
        if not matching:
            raise BadRequest(f"read: expected one of the outputs {', '.join(names)}, found none like {read.output!r}")
        by_output = {name: Read(name) for name in matching} | by_output
    return [by_output[name] for name in names if name in by_output]


def _is_pattern(read: Read) -> bool:
    return not read.indices and not read.masked and any(sign in read.output for sign in "*?")


def apply_reads(graph: ir.Graph, reads: Sequence[Read], mask: str | None = None) -> None:
    """Replaces the graph's outputs by these parts of them, in place. Outputs keep their names.

    reads: as `resolve` returns them. mask: the name of the input that hides tokens, if the pass "pack" follows. Raises
    BadRequest for a part outside its output; with a mask also for a range of tokens.
    """
    if not reads:
        return
    outputs = {value.name: value for value in graph.outputs}
    nodes = Nodes(Constants(graph), put=graph.append)
    mask_input = next((value for value in graph.inputs if value.name == mask), None)
    parts = []
    for read in reads:
        value = outputs[read.output]
        part = _visible_rows(value, mask_input, nodes) if read.masked else _part(value, read, nodes, mask_input)
        if part is not value:
            value.name, part.name = nodes.constants.name(f"{value.name}_whole"), value.name
        parts.append(part)
    graph.outputs.clear()
    graph.outputs.extend(parts)


def _part(value: ir.Value, read: Read, nodes: Nodes, mask: ir.Value | None) -> ir.Value:
    """The part `read` of an output.

    With a mask a token is picked by a list of one number: the pass read-rows leaves such a Gather to the pass "pack",
    which picks the token of each text.
    """
    if value.shape is not None:
        read.check(value.shape)
    part, is_packed = value, mask is not None
    for axis, index in reversed(list(enumerate(read.indices))):
        if isinstance(index, slice):
            _check_tokens(value, axis, index, read, mask)
            if (index.start, index.stop) != (None, None):
                stop = np.iinfo(np.int64).max if index.stop is None else index.stop
                part = nodes.cut(part, nodes.integers([index.start or 0]), nodes.integers([stop]), axis)
        elif isinstance(index, tuple) or (is_packed and index not in (0, -1)):
            part = nodes.gather(part, nodes.integers([index] if isinstance(index, int) else index), axis)
            part = nodes.squeeze(part, [axis]) if isinstance(index, int) else part
        else:
            part = nodes.gather(part, nodes.scalar(index), axis)
    if part is not value and value.is_graph_input():
        raise BadRequest(f"read: expected an output that a node computes, found the input {read}")
    return part


def _check_tokens(value: ir.Value, axis: int, rows: slice, read: Read, mask: ir.Value | None) -> None:
    """Raises BadRequest for a range of tokens: in texts of different lengths it means different tokens."""
    if mask is None or mask.shape is None or value.shape is None or not same(value.shape[axis], mask.shape[-1]):
        return
    count = len(range(sys.maxsize)[rows])
    if 1 < count < sys.maxsize:
        raise BadRequest(f"read: expected tokens by number with --packed, as {read.output}[:,[-2,-1]], found {read}")


def _visible_rows(value: ir.Value, mask: ir.Value | None, nodes: Nodes) -> ir.Value:
    """The output with 0 for the tokens that the mask hides."""
    if mask is not None and value.shape is None:
        raise BadRequest(
            f"read: expected tokens in the output {value.name!r}, found that its shape does not follow from the graph"
        )
    if mask is None or mask.shape is None or value.shape is None or value.shape.rank() < mask.shape.rank():
        raise BadRequest(f"read: expected {value.name}[mask] with --packed MASK and tokens in that output")
    wide = nodes.reshape(mask, [0] * mask.shape.rank() + [1] * (value.shape.rank() - mask.shape.rank()))
    zero = nodes.constants.add(np.zeros((), (value.dtype or ir.DataType.FLOAT).numpy()), "zero", value.dtype)
    return nodes.add("Where", [nodes.cast(wide, BOOL), value, zero])
