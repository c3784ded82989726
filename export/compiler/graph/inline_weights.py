"""Large weights inside a model's file, read and written without a copy of them in memory.

`outline` reads: bytes of the model whose large weights are places in the file itself, as if they lay beside it. `join`
writes: the reverse. Both walk protobuf's wire format: a message is a sequence of fields, each a key (number << 3 |
kind) and a number (kind 0), 8 bytes (1), a length and bytes (2) or 4 bytes (5).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError

LARGE = 200_000_000  # bytes of weights; below it the ways that save memory cost more time than they are worth
LEAST = 1 << 20  # bytes of a weight that stays in the file

GRAPH, INITIALIZER = 7, 5  # fields of a model and of a graph
FLOATS, RAW = 4, 9  # fields of a tensor
BYTES = 2  # kind of field


class Field(NamedTuple):
    """`begin`: of the key; `start`, `end`: of the content."""

    number: int
    kind: int
    begin: int
    start: int
    end: int


class InsideTensor(ir.ExternalTensor):
    """A weight in the model's own file."""


def outline(path: Path) -> bytes | None:
    """None for a file that has no large weights inside, or is no protobuf."""
    try:
        with path.open("rb") as file:
            data = file.fileno()
            fields = [*_fields(data, 0, os.fstat(file.fileno()).st_size)]
            graphs = [field for field in fields if field.number == GRAPH and field.kind == BYTES]
            if len(graphs) != 1:
                return None
            parts = [
                _outlined(data, field, path.resolve().name) for field in _fields(data, graphs[0].start, graphs[0].end)
            ]
            if not any(large for _, large in parts):
                return None
            graph = b"".join(part for part, _ in parts)
            rest = b"".join(_part(data, field.begin, field.end) for field in fields if field is not graphs[0])
            return rest + _message(GRAPH, graph)
    except (ValueError, DecodeError):
        return None


def _part(data: int, begin: int, end: int) -> bytes:
    """Of an open file, by its descriptor. A map of it would bring 2 MB into memory at each touch."""
    return os.pread(data, end - begin, begin)


def _outlined(data: int, field: Field, name: str) -> tuple[bytes, bool]:
    """A field of the graph, and whether it is a large weight, of which a place is left."""
    inner = [*_fields(data, field.start, field.end)] if field.number == INITIALIZER and field.kind == BYTES else []
    large = [each for each in inner if each.number in (FLOATS, RAW) and each.end - each.start >= LEAST]
    if len(large) != 1 or large[0].kind != BYTES:
        return _part(data, field.begin, field.end), False
    kept = b"".join(_part(data, each.begin, each.end) for each in inner if each is not large[0])
    tensor = onnx.TensorProto.FromString(kept)
    tensor.data_location = onnx.TensorProto.EXTERNAL
    place = {"location": name, "offset": str(large[0].start), "length": str(large[0].end - large[0].start)}
    for key, value in place.items():
        tensor.external_data.add(key=key, value=value)
    return _message(INITIALIZER, tensor.SerializeToString()), True


def join(outlined: Path, weights: Path, output: Path) -> None:
    """Writes the model `outlined` to `output`, with the weights that it names in the file `weights` inside."""
    model = onnx.load(outlined, load_external_data=False)
    tensors = [*model.graph.initializer]
    del model.graph.initializer[:]
    graph = model.graph.SerializeToString()
    model.ClearField("graph")
    heads = [_head(tensor) for tensor in tensors]
    size = len(graph) + sum(len(head) + length for head, _, length in heads)
    with output.open("wb") as file, weights.open("rb") as source:
        file.write(model.SerializeToString() + _key(GRAPH) + _varint(size) + graph)
        for head, offset, length in heads:
            file.write(head)
            source.seek(offset)
            _copy(source, file, length)


def _head(tensor: onnx.TensorProto) -> tuple[bytes, int, int]:
    """The field of a graph up to the raw data, and its place in the file of weights."""
    if tensor.data_location != onnx.TensorProto.EXTERNAL:
        return _message(INITIALIZER, tensor.SerializeToString()), 0, 0
    place = {entry.key: entry.value for entry in tensor.external_data}
    length = int(place["length"])
    del tensor.external_data[:]
    tensor.ClearField("data_location")
    before = tensor.SerializeToString() + _key(RAW) + _varint(length)
    return _key(INITIALIZER) + _varint(len(before) + length) + before, int(place.get("offset", 0)), length


def _copy(source: BinaryIO, file: BinaryIO, length: int) -> None:
    while length:
        chunk = source.read(min(length, LEAST))
        if not chunk:
            raise OSError(f"{source.name}: expected {length} more bytes, found its end")
        file.write(chunk)
        length -= len(chunk)


def _fields(data: int, start: int, end: int) -> Iterator[Field]:
    """Raises ValueError for what is no message."""
    while start < end:
        begin = start
        key, start = _number(data, start)
        match key & 7:
            case 0:
                _, stop = _number(data, start)
            case 1:
                stop = start + 8
            case 2:
                length, start = _number(data, start)
                stop = start + length
            case 5:
                stop = start + 4
            case kind:
                raise ValueError(f"expected a field of protobuf, found the kind {kind}")
        if stop > end:
            raise ValueError(f"expected a field within {end} bytes, found one to {stop}")
        yield Field(key >> 3, key & 7, begin, start, stop)
        start = stop


def _number(data: int, start: int) -> tuple[int, int]:
    """A number of 7 bits a byte, and where it ends."""
    number = 0
    for position, byte in enumerate(_part(data, start, start + 10)):
        number |= (byte & 127) << 7 * position
        if byte < 128:
            return number, start + position + 1
    raise ValueError(f"expected a number, found none at {start}")


def _varint(number: int) -> bytes:
    parts = bytearray()
    while number > 127:
        parts.append(number & 127 | 128)
        number >>= 7
    return bytes([*parts, number])


def _key(number: int) -> bytes:
    return _varint(number << 3 | BYTES)


def _message(number: int, content: bytes) -> bytes:
    return _key(number) + _varint(len(content)) + content
