"""The configuration of a new model in Triton's protobuf, and what others read of a configuration.

In: a manifest and an engine. Out: a message for config.pbtxt with its tensors and what no option sets.
Source: triton-inference-server/common, protobuf/model_config.proto.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal

from common.repository import LABELS_FILE, ONNX_FILE
from export.errors import PublishError
from export.publishing.manifest import Manifest, Tensor

if TYPE_CHECKING:
    from tritonclient.grpc import model_config_pb2 as pb

# Larger batches leave a CPU's cache. Clients split them.
MAX_BATCH_SIZE = 256
# Images at once inside a transformer, in the project's ONNX Runtime backend.
INNER_BATCH = 64

WARMUP_NAME = "sample"  # of the warm-up of another network: the sample's inputs

Engine = Literal["onnxruntime", "openvino", "tensorrt"]
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


def new_config(name: str, manifest: Manifest, engine: str) -> pb.ModelConfig:
    """Engine, tensors, and what no option sets.

    Triton joins requests only if all inputs and outputs share a free first axis. Raises PublishError.
    """
    from tritonclient.grpc import model_config_pb2 as pb

    batched, own = is_batched(manifest), manifest.config
    # OpenVINO's native backend fixes the batch unless the dims are open. Clients read `max_images`.
    open_dims = engine == "openvino"
    # KIND_AUTO takes the server's GPU, if any; OpenVINO's backend knows only CPUs.
    kind = pb.ModelInstanceGroup.KIND_CPU if open_dims else pb.ModelInstanceGroup.KIND_AUTO
    message = pb.ModelConfig(name=name, instance_group=[pb.ModelInstanceGroup(kind=kind)])
    message.input.extend(pb.ModelInput(**each) for each in _tensors(manifest.inputs, batched and not open_dims))
    message.output.extend(pb.ModelOutput(**each) for each in _tensors(manifest.outputs, batched and not open_dims))
    if engine == "tensorrt":
        message.platform = "tensorrt_plan"
    else:
        message.backend = engine
    if open_dims:
        message.default_model_filename = ONNX_FILE  # the backend's default name differs
    if batched:
        message.max_batch_size = 0 if open_dims else MAX_BATCH_SIZE
        message.dynamic_batching.SetInParent()  # without delay: it cost every lone request 0.2 ms
    if own is None:
        message.model_warmup.add(name=WARMUP_NAME, batch_size=1)
    else:
        message.output[0].label_filename = LABELS_FILE
        message.response_cache.enable = False  # images rarely repeat
    if own and engine == "onnxruntime":
        # No memory pattern: docs/decisions.md, Serving.
        message.parameters["enable_mem_pattern"].string_value = "0"
        if own.is_transformer:
            message.parameters["inner_batch"].string_value = str(INNER_BATCH)
    return message


def is_batched(manifest: Manifest) -> bool:
    """Whether Triton can join requests. Raises PublishError for tensors that it does not take."""
    forms = {**manifest.inputs, **manifest.outputs}
    for name, form in forms.items():
        if form.dtype not in TYPES:
            raise PublishError(f"{name}: expected numbers, found {form.dtype}")
        if not form.shape:
            raise PublishError(f"{name}: expected at least one axis, found none: Triton takes no scalars")
    if manifest.origin.joined_rows is not None:
        return manifest.origin.joined_rows
    first = {form.shape[0] for form in forms.values()}
    batch = next(iter(first))
    square = any(batch in form.shape[1:] for form in forms.values())  # an answer has a column for each row of the batch
    return len(first) == 1 and isinstance(batch, str) and not square


def has_free_rows(manifest: Manifest) -> bool:
    forms = (*manifest.inputs.values(), *manifest.outputs.values())
    return bool(manifest.inputs) and all(isinstance(next(iter(form.shape), 0), str) for form in forms)


def _tensors(forms: Mapping[str, Tensor], without_batch: bool) -> Iterator[dict[str, Any]]:
    """Fields of a ModelInput or ModelOutput."""
    from tritonclient.grpc import model_config_pb2 as pb

    for name, form in forms.items():
        dims = [size if isinstance(size, int) else -1 for size in form.shape[1 if without_batch else 0 :]]
        entry = {"name": name, "data_type": pb.DataType.Value(TYPES[form.dtype]), "dims": dims or [1]}
        yield entry if dims else {**entry, "reshape": pb.ModelTensorReshape()}  # a number for each row


def engine_of(message: pb.ModelConfig) -> str:
    return "tensorrt" if message.platform == "tensorrt_plan" else str(message.backend)


def image_shape(message: pb.ModelConfig) -> tuple[int, ...]:
    """(C, H, W)."""
    return tuple(message.input[0].dims)[-3:]


def to_text(message: pb.ModelConfig) -> str:
    from google.protobuf import text_format

    text: str = text_format.MessageToString(message)
    return text
