"""Reads and writes models whose large weights are inside the model's own file, without a copy of them in memory.

`outline` reads a file: it returns the model's bytes with an external location in place of each large weight. The
location is an offset in the same file. `join` writes a file: it puts external weights back inside. Both walk protobuf's
wire format. A message is a sequence of fields. A field is a key (number << 3 | kind), then a number (kind 0), 8 bytes
(kind 1), a length and bytes (kind 2) or 4 bytes (kind 5).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError

LARGE = 200_000_000  # bytes of weights; for smaller models saving memory costs more time than it is worth
LEAST = 1 << 20  # bytes; smaller weights are read at once

GRAPH, INITIALIZER = 7, 5  # fields of a model and of a graph
FLOATS, RAW = 4, 9  # fields of a tensor
BYTES = 2  # the kind of a field


class Field(NamedTuple):
    """A field's number and kind, and offsets in the file: `begin` of its key, `start` and `end` of its content."""

    number: int
    kind: int
    begin: int
    start: int
    end: int


class InsideTensor(ir.ExternalTensor):
    """A weight in the model's own file, which is read when it is needed."""


def outline(path: Path) -> bytes | None:
    """The model's bytes without its large weights; None for a file without large weights, or that is no protobuf."""
    try:
        with path.open("rb") as file:
            descriptor = file.fileno()
            fields = [*_fields(descriptor, 0, os.fstat(descriptor).st_size)]
            graphs = [field for field in fields if field.number == GRAPH and field.kind == BYTES]
            if len(graphs) != 1:
                return None
            graph_fields = _fields(descriptor, graphs[0].start, graphs[0].end)
            parts = [_outlined(descriptor, field, path.resolve().name) for field in graph_fields]
            if not any(is_outlined for _, is_outlined in parts):
                return None
            graph = b"".join(part for part, _ in parts)
            head = b"".join(_read(descriptor, field.begin, field.end) for field in fields if field is not graphs[0])
            return head + _message(GRAPH, graph)
    except (ValueError, DecodeError):
        return None


def _read(descriptor: int, begin: int, end: int) -> bytes:
    """Bytes of an open file. A memory map would bring 2 MB into memory at each access."""
    return os.pread(descriptor, end - begin, begin)


def _outlined(descriptor: int, field: Field, name: str) -> tuple[bytes, bool]:
    """The bytes of a field of the graph, and True if it is a large weight, whose data became a location in `name`."""
    is_weight = field.number == INITIALIZER and field.kind == BYTES
    tensor_fields = [*_fields(descriptor, field.start, field.end)] if is_weight else []
    large = [part for part in tensor_fields if part.number in (FLOATS, RAW) and part.end - part.start >= LEAST]
    if len(large) != 1 or large[0].kind != BYTES:
        return _read(descriptor, field.begin, field.end), False
    data = large[0]
    head = b"".join(_read(descriptor, part.begin, part.end) for part in tensor_fields if part is not data)
    tensor = onnx.TensorProto.FromString(head)
    tensor.data_location = onnx.TensorProto.EXTERNAL
    location = {"location": name, "offset": str(data.start), "length": str(data.end - data.start)}
    for key, value in location.items():
        tensor.external_data.add(key=key, value=value)
    return _message(INITIALIZER, tensor.SerializeToString()), True


def join(outlined: Path, weights: Path, output: Path) -> None:
    """Writes the model `outlined`, whose external weights are in the file `weights`, to the single file `output`."""
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
    """The bytes of a graph's field up to the weight's raw data; the data's offset and length in the file of weights."""
    if tensor.data_location != onnx.TensorProto.EXTERNAL:
        return _message(INITIALIZER, tensor.SerializeToString()), 0, 0
    location = {entry.key: entry.value for entry in tensor.external_data}
    length = int(location["length"])
    del tensor.external_data[:]
    tensor.ClearField("data_location")
    before = tensor.SerializeToString() + _key(RAW) + _varint(length)
    return _key(INITIALIZER) + _varint(len(before) + length) + before, int(location.get("offset", 0)), length


def _copy(source: BinaryIO, file: BinaryIO, length: int) -> None:
    while length:
        chunk = source.read(min(length, LEAST))
        if not chunk:
            raise OSError(f"{source.name}: expected {length} more bytes, found its end")
        file.write(chunk)
        length -= len(chunk)


def _fields(descriptor: int, start: int, end: int) -> Iterator[Field]:
    """The fields of the message between two offsets of a file. Raises ValueError if there is no message."""
    while start < end:
        begin = start
        key, start = _number(descriptor, start)
        match key & 7:
            case 0:
                _, stop = _number(descriptor, start)
            case 1:
                stop = start + 8
            case 2:
                length, start = _number(descriptor, start)
                stop = start + length
            case 5:
                stop = start + 4
            case kind:
                raise ValueError(f"expected a field of protobuf, found the kind {kind}")
        if stop > end:
            raise ValueError(f"expected a field within {end} bytes, found one to {stop}")
        yield Field(key >> 3, key & 7, begin, start, stop)
        start = stop


def _number(descriptor: int, start: int) -> tuple[int, int]:
    """A varint, which holds 7 bits in a byte, and the offset of its end."""
    number = 0
    for position, byte in enumerate(_read(descriptor, start, start + 10)):
        number |= (byte & 127) << 7 * position
        if byte < 128:
            return number, start + position + 1
    raise ValueError(f"expected a number, found none at {start}")


def _varint(number: int) -> bytes:
    """The number as protobuf writes it."""
    parts = bytearray()
    while number > 127:
        parts.append(number & 127 | 128)
        number >>= 7
    return bytes([*parts, number])


def _key(number: int) -> bytes:
    """The key of the field with this number and the kind BYTES."""
    return _varint(number << 3 | BYTES)


def _message(number: int, content: bytes) -> bytes:
    return _key(number) + _varint(len(content)) + content
