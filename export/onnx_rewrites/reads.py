"""The part of a graph's outputs that its user reads: `last_hidden_state[:,0]`.

In: a name and indices as in numpy's basic indexing. Out: a graph with only that output part, and the same part of an
array, for the proof.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from export.onnx_rewrites.constants import Constants, of_type
from export.onnx_rewrites.errors import BadRequest
from export.onnx_rewrites.shapes import WITHIN

Index = int | slice


@dataclass(frozen=True)
class Read:
    output: str
    indices: tuple[Index, ...] = ()

    def of(self, array: NDArray[np.generic]) -> NDArray[np.generic]:
        """Raises as `check`."""
        self.check(array.shape)
        return np.asarray(array[self.indices])

    def check(self, shape: Iterable[int | ir.SymbolicDim]) -> None:
        """Raises BadRequest if an array of this shape has no such part."""
        dims = list(shape)
        if len(self.indices) > len(dims) or not all(map(_has, dims, self.indices)):
            raise BadRequest(f"read: expected indices within the shape ({', '.join(map(str, dims))}), found {self}")

    def __str__(self) -> str:
        return self.output + ("[" + ",".join(map(_text, self.indices)) + "]" if self.indices else "")


def parse_read(text: str) -> Read:
    """NAME or NAME[INDEX, ...], each index a number or START:END; raises BadRequest."""
    match = re.fullmatch(r"(.+?)(?:\[([^\[\]]*)\])?", text.strip())
    if match is None:
        raise BadRequest(f"read: expected NAME or NAME[INDEX,...], found {text!r}")
    name, inside = match.groups()
    return Read(name, tuple(_index(part.strip(), text) for part in inside.split(",")) if inside is not None else ())


def _index(part: str, text: str) -> Index:
    match = re.fullmatch(r"(-?\d+)|(-?\d*):(-?\d*)", part)
    if match is None:
        raise BadRequest(f"read: expected a number or START:END between the brackets, found {part!r} in {text!r}")
    number, start, end = match.groups()
    if number is not None:
        return int(number)
    return slice(int(start) if start else None, int(end) if end else None)


def _has(size: int | ir.SymbolicDim, index: Index) -> bool:
    """Whether the index picks an element, of a free dimension at some size."""
    rows = slice(index, index + 1 or None) if isinstance(index, int) else index
    sizes = (size,) if isinstance(size, int) else (1, sys.maxsize)
    return any(len(range(each)[rows]) > 0 for each in sizes)


def _text(index: Index) -> str:
    if isinstance(index, int):
        return str(index)
    return ":".join("" if end is None else str(end) for end in (index.start, index.stop))


def apply_reads(graph: ir.Graph, reads: Sequence[Read]) -> None:
    """The names stay; raises BadRequest for unknown outputs and parts outside them."""
    if not reads:
        return
    outputs = {value.name: value for value in graph.outputs}
    if len({read.output for read in reads}) < len(reads):
        raise BadRequest("read: expected each output once, found an output twice")
    constants = Constants(graph)
    chosen = []
    for read in reads:
        if read.output not in outputs:
            names = ", ".join(str(name) for name in outputs)
            raise BadRequest(f"read: expected one of the outputs {names}, found {read.output!r}")
        chosen.append(_part(graph, outputs[read.output], read, constants))
    graph.outputs.clear()
    graph.outputs.extend(chosen)


def _part(graph: ir.Graph, value: ir.Value, read: Read, constants: Constants) -> ir.Value:
    if value.shape is not None:
        read.check(value.shape)
    name, dtype, part = value.name or "", value.dtype, value
    for axis, index in reversed(list(enumerate(read.indices))):
        if isinstance(index, int):
            at = constants.add(np.array(index, np.int64), "row")
            part = _add(graph, ir.node("Gather", [part, at], attributes={"axis": axis}), constants, name)
        elif (index.start, index.stop) != (None, None):
            stop = np.iinfo(np.int64).max if index.stop is None else index.stop
            ends = [constants.add_integers([end]) for end in (index.start or 0, stop, axis)]
            part = _add(graph, ir.node("Slice", [part, *ends]), constants, name)
            part.meta[WITHIN] = True
    if part is not value:
        if value.is_graph_input():
            raise BadRequest(f"read: expected an output that a node computes, found the input {read}")
        value.name, of_type(part, dtype).name = constants.name(f"{name}_whole"), name
    return part


def _add(graph: ir.Graph, node: ir.Node, constants: Constants, name: str) -> ir.Value:
    graph.append(node)
    node.outputs[0].name = constants.name(f"{name}_part")
    return node.outputs[0]
