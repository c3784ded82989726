"""Reads and writes ONNX files. Large weights stay on disk until a pass or the proof needs them."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from graphlib import CycleError, TopologicalSorter
from itertools import chain
from pathlib import Path
from typing import Any, TypeGuard

import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError
from onnx_ir.external_data import set_base_dir
from onnx_ir.serde import SerdeError

from export.compiler.errors import BadRequest, NotSupported
from export.compiler.graph.check_proto import check_proto
from export.compiler.graph.constants import FLOATS
from export.compiler.graph.embedded_weights import LARGE, InsideTensor, join, outline
from export.compiler.graph.input_defaults import restore_defaults, split_defaults

LARGEST_INSIDE = 1_500_000_000  # bytes of weights in the model's own file; protobuf's limit for a file is 2 GB


def read_model(path: Path) -> ir.Model:
    """The model of a file, with its nodes in topological order.

    Raises BadRequest if the file is no ONNX model or lacks weights, NotSupported for weights outside its folder.
    """
    logging.getLogger("onnx_ir").setLevel(logging.ERROR)
    if path.exists() and not path.is_file():  # reading a pipe would wait for a writer
        raise BadRequest(f"{path}: expected an ONNX model, found no regular file")
    try:
        model = _loaded(path)
        next(iter(model.graph.outputs))
        _check_circles(model, path)
        model.graph.sort()  # ONNX Runtime's float16 converter writes nodes out of order
    except (OSError, ValueError, KeyError, TypeError, DecodeError, StopIteration, RuntimeError) as error:
        reason = " ".join(str(error).split())[:200] if isinstance(error, OSError) else "parts that cannot be read"
        if isinstance(error, StopIteration):
            reason = "a graph without outputs"
        if isinstance(error, DecodeError):
            reason = "another kind of file, or a model that was cut off"
        if isinstance(error, SerdeError):
            reason = "a graph whose parts do not fit together, such as two values of one name"
        raise BadRequest(f"{path}: expected an ONNX model, found {reason}") from error
    for node in chain(model.graph, *model.functions.values()):
        if not node.outputs:
            raise BadRequest(f"{path}: expected outputs of each {node.op_type}, found none at node {node.name!r}")
        for value in node.inputs:
            if value and not (value.producer() or value.is_graph_input() or value.is_initializer()):
                raise BadRequest(f"{path}: expected inputs of {node.op_type} that are known, found {value.name!r}")
    for value in model.graph.outputs:
        if not (value.producer() or value.is_graph_input() or value.is_initializer()):
            raise BadRequest(f"{path}: expected outputs that a node computes, found {value.name!r}")
    if "ai.onnx" in (opsets := model.graph.opset_imports):  # the long name of the standard domain
        opsets[""] = opsets.pop("ai.onnx")
    _follow_links(model, path.resolve().parent)
    _check_weight_files(model, path)
    _check_lengths(model, path)
    return model


def _loaded(path: Path) -> ir.Model:
    """The model of a file. Weights inside a large file stay on disk until they are read."""
    data = outline(path) if path.stat().st_size > LARGE else None
    proto = onnx.load(path, load_external_data=False) if data is None else onnx.ModelProto.FromString(data)
    check_proto(proto, path)
    model, place = ir.from_proto(proto), path if data is None else path.resolve()
    split_defaults(model)
    for body in (model.graph, *(function.graph for function in model.functions.values())):
        set_base_dir(body, place.parent)
    for value in model.graph.initializers.values():
        tensor = value.const_value
        if isinstance(tensor, ir.TensorProtoTensor) and tensor.dtype in FLOATS:  # it copies its array at each read
            value.const_value = ir.tensor(tensor.numpy(), tensor.dtype, tensor.name, tensor.doc_string)
        elif data is not None and isinstance(tensor, ir.ExternalTensor) and tensor.location == place.name:
            where = tensor.location, tensor.offset, tensor.length, tensor.dtype
            value.const_value = InsideTensor(*where, shape=tensor.shape, name=str(tensor.name), base_dir=place.parent)
    return model


def _check_circles(model: ir.Model, path: Path) -> None:
    """Raises BadRequest for nodes, or functions, that need their own results."""
    dependencies: list[tuple[str, dict[Any, list[Any]]]] = [
        ("function", {key: [node.op_identifier() for node in body] for key, body in model.functions.items()})
    ]
    for nodes in (model.graph, *model.functions.values()):
        producers = {node: [value.producer() for value in node.inputs if value is not None] for node in nodes}
        graph = {node: [producer for producer in producers[node] if producer is not None] for node in producers}
        dependencies.append(("node", graph))
    for kind, graph in dependencies:
        try:
            TopologicalSorter(graph).prepare()
        except CycleError as error:
            first = error.args[1][0]
            name = first.name or first.outputs[0].name if isinstance(first, ir.Node) else first[1]
            raise BadRequest(f"{path}: expected no {kind} that needs its own result, found {name!r}") from error


def _check_weight_files(model: ir.Model, path: Path) -> None:
    """Raises BadRequest for a missing file of weights, NotSupported for a file that onnx_ir refuses to read."""
    for file in weight_files(model):
        if not file.resolve().is_relative_to(path.resolve().parent):
            raise NotSupported(f"{path}: expected its weights in its folder, found {file}")
        if not file.is_file():
            raise BadRequest(f"{path}: expected its weights in {file}, found no such file")
        if file.stat().st_nlink > 1:
            raise NotSupported(f"{path}: expected weights in a file of one name, found a hard link, {file}")


def _check_lengths(model: ir.Model, path: Path) -> None:
    """Raises BadRequest for a file of weights that was cut off, as by an interrupted download."""
    for tensor in _weights(model):
        if isinstance(tensor, ir.ExternalTensor):
            end, size = (tensor.offset or 0) + tensor.nbytes, Path(tensor.path).stat().st_size
            if size < end:
                raise BadRequest(f"{path}: expected at least {end:,} bytes in {tensor.path}, found {size:,}")


def _follow_links(model: ir.Model, folder: Path) -> None:
    """Follows links into the model's own folder, as in Hugging Face's cache.

    Raises NotSupported for other links: a model from a stranger must not read any file of this machine.
    """
    for value in model.graph.initializers.values():
        tensor = value.const_value
        if _is_separate(tensor) and Path(tensor.path).is_symlink():
            file = Path(tensor.path).resolve()
            if file.parent != folder:
                raise NotSupported(f"{tensor.path}: expected a link into {folder}, found a link to {file}")
            place = file.name, tensor.offset, tensor.length, tensor.dtype
            value.const_value = ir.ExternalTensor(*place, shape=tensor.shape, name=str(tensor.name), base_dir=folder)


def weight_bytes(model: ir.Model) -> int:
    """The size of all weights in bytes, wherever they are stored."""
    return sum(value.const_value.nbytes for value in model.graph.initializers.values() if value.const_value is not None)


def weight_files(model: ir.Model) -> list[Path]:
    """The files of weights beside the model's own file."""
    return sorted({Path(tensor.path) for tensor in _weights(model) if _is_separate(tensor)})


def _weights(model: ir.Model) -> Iterator[ir.TensorProtocol | None]:
    """Also those of Constant nodes, branches and functions."""
    for body in (model.graph, *(function.graph for function in model.functions.values())):
        for graph in (body, *body.subgraphs()):
            yield from (value.const_value for value in graph.initializers.values())
        for node in body.all_nodes():
            fields = (field for field in node.attributes.values() if field.type == ir.AttributeType.TENSOR)
            yield from (field.as_tensor() for field in fields if not field.is_ref())


def _is_separate(tensor: ir.TensorProtocol | None) -> TypeGuard[ir.ExternalTensor]:
    """Whether the tensor is stored outside the model's own file."""
    return isinstance(tensor, ir.ExternalTensor) and not isinstance(tensor, InsideTensor)


def release(model: ir.Model) -> None:
    """Unmaps the files of weights: a mapped file counts as memory of the process once it was read."""
    for value in model.graph.initializers.values():
        if isinstance(value.const_value, ir.ExternalTensor):
            with suppress(BufferError):  # an array in use still needs the map
                value.const_value.release()


def data_file(path: Path) -> Path:
    """Where `save_model` writes weights that do not fit into the model's own file."""
    return path.with_name(f"{path.name}.data")


def check_overwrites(output: Path, inputs: Sequence[Path]) -> None:
    """Raises BadRequest if a file that is written with `output` has the path of an input or of another such file."""
    written = [output, data_file(output), output.with_suffix(".npz"), output.with_suffix(".json")]
    if len({*written}) < len(written):
        raise BadRequest(f"{output}: expected a name as OUT.onnx, found that of its manifest or sample")
    if folders := [path for path in written if path.is_dir()]:
        raise BadRequest(f"{folders[0]}: expected a file, found a folder")
    input_paths = {path.resolve() for path in inputs}
    if overwritten := [path for path in written if path.resolve() in input_paths]:
        raise BadRequest(f"{output}: expected other files than those that are read, found {overwritten[0]}")


def weights_by_place(path: Path) -> dict[str, Path]:
    """The path of each file of weights, by the location, relative to the model's folder, that the model gives it.

    Raises NotSupported for a location outside the folder.
    """
    places = {}
    for tensor in _weights(ir.load(path)):
        if isinstance(tensor, ir.ExternalTensor):
            place = Path(tensor.location)
            if place.is_absolute() or ".." in place.parts:
                raise NotSupported(f"{path}: expected its weights in its folder, found {place}")
            places[place.as_posix()] = path.parent / place
    return places


def save_model(model: ir.Model, path: Path) -> None:
    """Writes the model. Weights that were in separate files, or are too large for one, go to `data_file(path)`."""
    restore_defaults(model)
    size = weight_bytes(model)
    if size > LARGEST_INSIDE or weight_files(model):
        ir.save(model, path, external_data=data_file(path).name)
    elif size > LARGE:
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            outlined = Path(folder) / path.name
            ir.save(model, outlined, external_data="weights")
            join(outlined, outlined.with_name("weights"), path)
    else:
        ir.save(model, path)
    release(model)
