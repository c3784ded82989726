"""ONNX files: weights stay on disk until needed.

In: paths. Out: models.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Sequence
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
from export.compiler.graph.check_proto import check_parts
from export.compiler.graph.constants import FLOATS
from export.compiler.graph.inline_weights import LARGE, InsideTensor, join, outline
from export.compiler.graph.input_defaults import restore_defaults, split_defaults

LARGEST_INSIDE = 1_500_000_000  # bytes of weights; protobuf's limit is 2 GB


def read_model(path: Path) -> ir.Model:
    """Raises BadRequest if the file is no model or lacks weights, NotSupported for weights elsewhere."""
    logging.getLogger("onnx_ir").setLevel(logging.ERROR)
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
    _check_places(model, path)
    _check_lengths(model, path)
    return model


def _loaded(path: Path) -> ir.Model:
    """Large weights inside the file stay there, too, until they are read."""
    data = outline(path) if path.stat().st_size > LARGE else None
    proto = onnx.load(path, load_external_data=False) if data is None else onnx.ModelProto.FromString(data)
    check_parts(proto, path)
    model, place = ir.from_proto(proto), path if data is None else path.resolve()
    split_defaults(model)
    set_base_dir(model.graph, place.parent)
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
    kinds: list[tuple[str, dict[Any, list[Any]]]] = [
        ("function", {key: [node.op_identifier() for node in body] for key, body in model.functions.items()})
    ]
    for nodes in (model.graph, *model.functions.values()):
        makers = {node: [value.producer() for value in node.inputs if value is not None] for node in nodes}
        kinds.append(("node", {node: [maker for maker in each if maker is not None] for node, each in makers.items()}))
    for kind, needed in kinds:
        try:
            TopologicalSorter(needed).prepare()
        except CycleError as error:
            first = error.args[1][0]
            name = first.name or first.outputs[0].name if isinstance(first, ir.Node) else first[1]
            raise BadRequest(f"{path}: expected no {kind} that needs its own result, found {name!r}") from error


def _check_places(model: ir.Model, path: Path) -> None:
    """Raises BadRequest for a missing file of weights, NotSupported for one that onnx_ir does not read."""
    for file in weight_files(model):
        if not file.resolve().is_relative_to(path.resolve().parent):
            raise NotSupported(f"{path}: expected its weights in its folder, found {file}")
        if not file.is_file():
            raise BadRequest(f"{path}: expected its weights in {file}, found no such file")
        if file.stat().st_nlink > 1:
            raise NotSupported(f"{path}: expected weights in a file of one name, found a hard link, {file}")


def _check_lengths(model: ir.Model, path: Path) -> None:
    """Raises BadRequest for a file of weights that was cut off, as by an interrupted download."""
    for value in model.graph.initializers.values():
        tensor = value.const_value
        if isinstance(tensor, ir.ExternalTensor):
            end, size = (tensor.offset or 0) + tensor.nbytes, Path(tensor.path).stat().st_size
            if size < end:
                raise BadRequest(f"{path}: expected at least {end:,} bytes in {tensor.path}, found {size:,}")


def _follow_links(model: ir.Model, folder: Path) -> None:
    """Follows links into the model's own folder, as in Hugging Face's cache.

    Raises NotSupported for other links: a strange model must not read any file.
    """
    for value in model.graph.initializers.values():
        tensor = value.const_value
        if _is_apart(tensor) and Path(tensor.path).is_symlink():
            file = Path(tensor.path).resolve()
            if file.parent != folder:
                raise NotSupported(f"{tensor.path}: expected a link into {folder}, found a link to {file}")
            place = file.name, tensor.offset, tensor.length, tensor.dtype
            value.const_value = ir.ExternalTensor(*place, shape=tensor.shape, name=str(tensor.name), base_dir=folder)


def weight_bytes(model: ir.Model) -> int:
    return sum(value.const_value.nbytes for value in model.graph.initializers.values() if value.const_value is not None)


def weight_files(model: ir.Model) -> list[Path]:
    tensors = [value.const_value for value in model.graph.initializers.values()]
    return sorted({Path(tensor.path) for tensor in tensors if _is_apart(tensor)})


def _is_apart(tensor: ir.TensorProtocol | None) -> TypeGuard[ir.ExternalTensor]:
    return isinstance(tensor, ir.ExternalTensor) and not isinstance(tensor, InsideTensor)


def release(model: ir.Model) -> None:
    """Unmaps the files of weights, which otherwise count as memory once read."""
    for value in model.graph.initializers.values():
        if isinstance(value.const_value, ir.ExternalTensor):
            with suppress(BufferError):  # an array still reads it
                value.const_value.release()


def data_file(path: Path) -> Path:
    """For weights outside the model's file."""
    return path.with_name(f"{path.name}.data")


def check_apart(output: Path, read: Sequence[Path]) -> None:
    """Raises BadRequest if writing `output` would replace a file that is read, or one new file another."""
    new = [output, data_file(output), output.with_suffix(".npz"), output.with_suffix(".json")]
    if len({*new}) < len(new):
        raise BadRequest(f"{output}: expected a name as OUT.onnx, found that of its manifest or sample")
    if folders := [path for path in new if path.is_dir()]:
        raise BadRequest(f"{folders[0]}: expected a file, found a folder")
    held = {path.resolve() for path in read}
    if taken := [path for path in new if path.resolve() in held]:
        raise BadRequest(f"{output}: expected other files than those that are read, found {taken[0]}")


def dtype_of(model: ir.Model) -> str:
    """The narrowest float type of the weights selects the tolerance; raises NotSupported for bfloat16."""
    held = {value.const_value.dtype for value in model.graph.initializers.values() if value.const_value is not None}
    if ir.DataType.BFLOAT16 in held:
        raise NotSupported("weights: expected float32 or float16, found bfloat16, which ONNX Runtime runs on no CPU")
    return "float16" if ir.DataType.FLOAT16 in held else "float32"


def weights_by_place(path: Path) -> dict[str, Path]:
    """The weights' files by the place that the model names, relative to its folder.

    Raises NotSupported for a place outside.
    """
    places = {}
    for value in ir.load(path).graph.initializers.values():
        if isinstance(tensor := value.const_value, ir.ExternalTensor):
            place = Path(tensor.location)
            if place.is_absolute() or ".." in place.parts:
                raise NotSupported(f"{path}: expected its weights in its folder, found {place}")
            places[place.as_posix()] = Path(tensor.path)
    return places


def save_model(model: ir.Model, path: Path) -> None:
    """Large weights, and those from a separate file, go to `data_file(path)`."""
    restore_defaults(model)
    size = weight_bytes(model)
    if size > LARGEST_INSIDE or weight_files(model):
        ir.save(model, path, external_data=data_file(path).name)
    elif size > LARGE:
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            apart = Path(folder) / path.name
            ir.save(model, apart, external_data="weights")
            join(apart, apart.with_name("weights"), path)
    else:
        ir.save(model, path)
    release(model)
