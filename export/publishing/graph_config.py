"""The tensors of any ONNX file -> config.pbtxt, through Triton's ModelConfig protobuf."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from export.errors import PublishError
from export.publishing.artifact import Manifest, Tensor
from export.publishing.beside import put
from export.publishing.sample import Arrays
from export.publishing.triton_config import MAX_BATCH_SIZE, Serving, configure

if TYPE_CHECKING:
    from tritonclient.grpc import model_config_pb2 as pb

WARMUP, WARMUP_NAME = "warmup", "sample"

TYPES = {
    "bool": "TYPE_BOOL",
    "uint8": "TYPE_UINT8",
    "int8": "TYPE_INT8",
    "int32": "TYPE_INT32",
    "int64": "TYPE_INT64",
    "float16": "TYPE_FP16",
    "float32": "TYPE_FP32",
    "float64": "TYPE_FP64",
}


def graph_config(name: str, manifest: Manifest, serving: Serving) -> pb.ModelConfig:
    """Triton joins requests only if all inputs and outputs share a free first axis. Raises PublishError."""
    from tritonclient.grpc import model_config_pb2 as pb

    tensors = {**manifest.inputs, **manifest.outputs}
    for tensor, form in tensors.items():
        if form.dtype not in TYPES:
            raise PublishError(f"{tensor}: expected numbers, found {form.dtype}")
        if not form.shape:
            raise PublishError(f"{tensor}: expected at least one axis, found none: Triton takes no scalars")
    first = {form.shape[0] for form in tensors.values()}
    batched = len(first) == 1 and isinstance(next(iter(first)), str)
    message = pb.ModelConfig(
        name=name,
        backend="onnxruntime",
        max_batch_size=MAX_BATCH_SIZE if batched else 0,
        instance_group=[pb.ModelInstanceGroup(kind=pb.ModelInstanceGroup.KIND_AUTO)],
    )
    if batched:
        message.dynamic_batching.SetInParent()
    for added, forms in ((message.input, manifest.inputs), (message.output, manifest.outputs)):
        _add_tensors(added, forms, batched)
    message.model_warmup.add(name=WARMUP_NAME, batch_size=1)
    configure_graph(message, replace(serving, instances=serving.instances or 1, threads=serving.threads or 0))
    return message


def _add_tensors(added: object, forms: Mapping[str, Tensor], batched: bool) -> None:
    from tritonclient.grpc import model_config_pb2 as pb

    for name, form in forms.items():
        dims = [size if isinstance(size, int) else -1 for size in form.shape[1 if batched else 0 :]]
        entry = added.add(name=name, data_type=pb.DataType.Value(TYPES[form.dtype]), dims=dims or [1])  # type: ignore[attr-defined]
        if not dims:  # a number for each row
            entry.reshape.SetInParent()


def configure_graph(message: pb.ModelConfig, serving: Serving) -> None:
    """As `configure`, but without batches Triton takes neither their size nor a queue."""
    if serving.max_batch and not message.max_batch_size:
        raise PublishError(f"{message.name}: expected a common free first axis for max_batch, found none")
    message.max_batch_size = serving.max_batch or message.max_batch_size
    instances = serving.instances if message.max_batch_size else None
    configure(message, replace(serving, max_batch=None, instances=instances))
    if serving.instances and not message.max_batch_size:
        group = message.instance_group[0] if message.instance_group else message.instance_group.add()
        group.count = serving.instances


def warm_up(message: pb.ModelConfig, sample: Arrays, number: int) -> Arrays:
    """Names the version's own inputs in `message`, as versions may differ in their shape; returns them by file."""
    files = {}
    for warmup in message.model_warmup:
        if warmup.name != WARMUP_NAME:
            continue  # the operator's
        for index, given in enumerate(message.input):
            array = sample[given.name][:1] if message.max_batch_size else sample[given.name]
            file = f"{number}_{index}_" + "".join(letter if letter.isalnum() else "_" for letter in given.name)
            entry = warmup.inputs[given.name]
            entry.data_type, entry.input_data_file = given.data_type, file
            entry.dims[:] = (array.shape[1:] if message.max_batch_size else array.shape) or [1]
            files[file] = array
    return files


def write_warm_up(folder: Path, files: Arrays) -> None:
    for file, array in files.items():
        put(np.ascontiguousarray(array).tobytes(), folder / WARMUP / file)


def check_same_tensors(model_dir: Path, held: pb.ModelConfig, manifest: Manifest) -> None:
    """Raises PublishError for other tensors or batches: clients read these once."""
    if "model_config" in held.parameters:
        raise PublishError(f"{model_dir}: expected a foreign model, found exports; publish it under another --name")
    message = graph_config(held.name, manifest, Serving())
    for kind in ("input", "output"):
        old, new = ([(t.name, t.data_type, _shape(t)) for t in getattr(each, kind)] for each in (held, message))
        if old != new:
            raise PublishError(f"{model_dir}: expected the {kind}s {old}, found {new}; publish it under another --name")
    if bool(held.max_batch_size) != bool(message.max_batch_size):
        raise PublishError(
            f"{model_dir}: expected max_batch_size {held.max_batch_size}, found {message.max_batch_size}; "
            "publish it under another --name"
        )


def _shape(tensor: pb.ModelInput | pb.ModelOutput) -> list[int]:
    """The file's shape; clients see `dims`."""
    return [*(tensor.reshape.shape if tensor.HasField("reshape") else tensor.dims)]
