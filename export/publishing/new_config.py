"""The configuration of a new model as Triton's protobuf message, and functions that read such a message.

In: a manifest and an engine. Out: the message with the model's tensors and all that no option sets.
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

# Images. The activations of larger batches do not fit into a CPU's cache. Clients split larger requests.
MAX_BATCH_SIZE = 256
# Images that the project's ONNX Runtime backend runs through a transformer at once.
INNER_BATCH = 64

WARMUP_NAME = "sample"  # the warm-up that sends the sample's inputs, of networks of another origin

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
    """The message for a model named `name`. Raises PublishError for tensors that Triton does not take."""
    from tritonclient.grpc import model_config_pb2 as pb

    batched, config = is_batched(manifest), manifest.config
    # OpenVINO's native backend fixes the batch unless the dims are open. Clients read `max_images`.
    open_dims = engine == "openvino"
    # KIND_AUTO takes the server's GPU, if any; OpenVINO's backend knows only CPUs.
    kind = pb.ModelInstanceGroup.KIND_CPU if open_dims else pb.ModelInstanceGroup.KIND_AUTO
    message = pb.ModelConfig(name=name, instance_group=[pb.ModelInstanceGroup(kind=kind)])
    without_batch = batched and not open_dims
    message.input.extend(pb.ModelInput(**fields) for fields in _tensor_fields(manifest.inputs, without_batch))
    message.output.extend(pb.ModelOutput(**fields) for fields in _tensor_fields(manifest.outputs, without_batch))
    if engine == "tensorrt":
        message.platform = "tensorrt_plan"
    else:
        message.backend = engine
    if open_dims:
        message.default_model_filename = ONNX_FILE  # the backend's default name differs
    if batched:
        message.max_batch_size = 0 if open_dims else MAX_BATCH_SIZE
        message.dynamic_batching.SetInParent()  # without delay: it cost every lone request 0.2 ms
    if config is None:
        message.model_warmup.add(name=WARMUP_NAME, batch_size=1)
    else:
        message.output[0].label_filename = LABELS_FILE
        message.response_cache.enable = False  # images rarely repeat
    if config and engine == "onnxruntime":
        # No memory pattern: docs/decisions.md, Serving.
        message.parameters["enable_mem_pattern"].string_value = "0"
        if config.is_transformer:
            message.parameters["inner_batch"].string_value = str(INNER_BATCH)
    return message


def is_batched(manifest: Manifest) -> bool:
    """Whether Triton may join requests into a batch: as `joined_rows` says, else by the names of the first axes.

    Triton joins only if all inputs and outputs share a free first axis. Raises PublishError for tensors that it does
    not take.
    """
    tensors = {**manifest.inputs, **manifest.outputs}
    for name, tensor in tensors.items():
        if tensor.dtype not in TYPES:
            raise PublishError(f"{name}: expected numbers, found {tensor.dtype}")
        if not tensor.shape:
            raise PublishError(f"{name}: expected at least one axis, found none: Triton takes no scalars")
    if manifest.origin.joined_rows is not None:
        return manifest.origin.joined_rows
    first_axes = {tensor.shape[0] for tensor in tensors.values()}
    batch = next(iter(first_axes))
    square = any(batch in tensor.shape[1:] for tensor in tensors.values())  # such as similarities of a batch's rows
    return len(first_axes) == 1 and isinstance(batch, str) and not square


def has_free_rows(manifest: Manifest) -> bool:
    """Whether there are inputs, and the first axes of all inputs and outputs are free and have names."""
    tensors = (*manifest.inputs.values(), *manifest.outputs.values())
    return bool(manifest.inputs) and all(isinstance(next(iter(tensor.shape), 0), str) for tensor in tensors)


def _tensor_fields(tensors: Mapping[str, Tensor], without_batch: bool) -> Iterator[dict[str, Any]]:
    """Fields of a ModelInput or ModelOutput. `without_batch`: Triton adds the batch dimension itself."""
    from tritonclient.grpc import model_config_pb2 as pb

    for name, tensor in tensors.items():
        dims = [size if isinstance(size, int) else -1 for size in tensor.shape[1 if without_batch else 0 :]]
        fields = {"name": name, "data_type": pb.DataType.Value(TYPES[tensor.dtype]), "dims": dims or [1]}
        yield fields if dims else {**fields, "reshape": pb.ModelTensorReshape()}  # every row is a single number


def engine_of(message: pb.ModelConfig) -> str:
    """The engine that runs the model: the backend's name, or "tensorrt"."""
    return "tensorrt" if message.platform == "tensorrt_plan" else str(message.backend)


def image_shape(message: pb.ModelConfig) -> tuple[int, ...]:
    """(C, H, W) of the first input."""
    return tuple(message.input[0].dims)[-3:]


def to_text(message: pb.ModelConfig) -> str:
    from google.protobuf import text_format

    text: str = text_format.MessageToString(message)
    return text
