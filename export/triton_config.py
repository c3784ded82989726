"""Model configuration -> Triton's config.pbtxt, through Triton's own ModelConfig protobuf.

In: the model, how it is to be served and which of its versions. Out: the text of config.pbtxt; each value has its
reason. Source: triton-inference-server/common, protobuf/model_config.proto.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from export.artifact import ONNX_FILE
from models.config import INPUT_NAME, OUTPUT_NAME, ModelConfig

if TYPE_CHECKING:
    from tritonclient.grpc import model_config_pb2 as pb

LABELS_FILE = "labels.txt"

# Larger batches are slower an image on a CPU (they leave the cache) and cost memory; clients split what is larger.
MAX_BATCH_SIZE = 256
# What may wait where several instances empty the queue; more, or for longer, is refused while a client still listens.
MAX_QUEUE_SIZE = 256
QUEUE_TIMEOUT_S = 10
ENGINE_PARAMETERS = ("enable_mem_pattern", "intra_op_thread_count")
# A new version and the one to fall back to.
SERVED_VERSIONS = 2


@dataclass(frozen=True)
class Serving:
    """How a model is served; what is None stays as its config.pbtxt has it, and is `DEFAULT` for a new model.

    `instances` are copies of the model on every device, `threads` those of each copy on a CPU, 0 for one a core. On a
    GPU, TensorRT replays a CUDA graph for a batch of any of `graph_batches`.
    """

    engine: Literal["onnxruntime", "openvino", "tensorrt"] | None = None
    instances: int | None = None
    threads: int | None = None
    max_batch_size: int | None = None
    graph_batches: Sequence[int] = ()


DEFAULT = Serving("onnxruntime", instances=1, threads=0, max_batch_size=MAX_BATCH_SIZE)


def new_config(name: str, config: ModelConfig) -> pb.ModelConfig:
    """A model to serve as `name`, complete but for what `configure`, `describe` and `serve_versions` say of it."""
    from tritonclient.grpc import model_config_pb2 as pb

    message = pb.ModelConfig(
        name=name,
        input=[pb.ModelInput(name=INPUT_NAME, data_type=pb.TYPE_UINT8, dims=config.input_shape)],
        output=[
            pb.ModelOutput(
                name=OUTPUT_NAME, data_type=pb.TYPE_FP32, dims=[config.num_classes], label_filename=LABELS_FILE
            )
        ],
        # What has queued up while the instances were busy is answered together. No delay and no preferred sizes: none
        # waits for more to come, which cost every lone request 0.2 ms, and any batch is as good as a rounder one.
        dynamic_batching=pb.ModelDynamicBatching(),
        # The same picture hardly comes twice, and a look into the cache costs every request.
        response_cache=pb.ModelResponseCache(enable=False),
    )
    configure(message, DEFAULT)
    return message


def configure(message: pb.ModelConfig, serving: Serving) -> None:
    """Writes into `message` what `serving` asks for."""
    from tritonclient.grpc import model_config_pb2 as pb

    if serving.engine:
        _set_engine(message, serving)
    if serving.max_batch_size:
        message.max_batch_size = serving.max_batch_size
        # The first requests would pay for memory and, on a GPU, for kernels: of the smallest and of the largest batch.
        del message.model_warmup[:]
        image = pb.ModelWarmup.Input(data_type=pb.TYPE_UINT8, dims=message.input[0].dims, zero_data=True)
        for size in (1, serving.max_batch_size):
            message.model_warmup.add(name=f"batch {size}", batch_size=size, inputs={INPUT_NAME: image})
    if serving.instances:
        del message.instance_group[:]
        # KIND_AUTO runs on a GPU where there is one.
        message.instance_group.add(kind=pb.ModelInstanceGroup.KIND_AUTO, count=serving.instances)
        _bound_queue(message, serving.instances)
    if serving.threads is not None:
        for key, value in _thread_parameters(message.backend, serving.threads).items():
            message.parameters[key].string_value = value


def _bound_queue(message: pb.ModelConfig, instances: int) -> None:
    """With several instances an overload is refused. With one, the queue has no policy.

    Under a policy Triton prepares no batch while its only instance works, and a request that comes just as an answer
    leaves now and then sleeps for 500 ms (measured on 2.51: 0.2 to 0.5 % of requests in sequence, none without).
    """
    from tritonclient.grpc import model_config_pb2 as pb

    batching = message.dynamic_batching
    if instances == 1:
        batching.ClearField("default_queue_policy")
        return
    batching.default_queue_policy.CopyFrom(
        pb.ModelQueuePolicy(
            timeout_action=pb.ModelQueuePolicy.REJECT,
            default_timeout_microseconds=QUEUE_TIMEOUT_S * 1_000_000,
            allow_timeout_override=True,
            max_queue_size=MAX_QUEUE_SIZE,
        )
    )


def describe(message: pb.ModelConfig, manifest: dict[str, Any]) -> None:
    """Writes what a client or an operator asks for: the model, where it came from and what it is worth."""
    accuracy = manifest.get("test_accuracy", manifest["metrics"].get("test_accuracy"))
    described = {
        "model_config": json.dumps(manifest["model_config"]),
        "rewrites": json.dumps(manifest["rewrites"]),
        "max_abs_error": f"{manifest['max_abs_error']:.3e}",
        "checkpoint_sha256": manifest["checkpoint_sha256"],
        "test_accuracy": None if accuracy is None else str(accuracy),
    }
    for key, value in described.items():
        if value is None:
            message.parameters.pop(key, None)
        else:
            message.parameters[key].string_value = value


def served_versions(message: pb.ModelConfig, present: Sequence[int]) -> list[int]:
    """Which of the versions `present` the version policy lets a server serve, ascending."""
    policy, ascending = message.version_policy, sorted(present)
    kind = policy.WhichOneof("policy_choice")
    if kind == "all":
        return ascending
    if kind == "specific":
        return sorted(set(ascending) & set(policy.specific.versions))
    return ascending[-(policy.latest.num_versions or 1) :]


def serve_versions(message: pb.ModelConfig, served: Sequence[int], present: Sequence[int]) -> None:
    """Lets a server serve `served` out of the versions `present`: as the latest ones where they are these."""
    message.version_policy.Clear()
    if sorted(served) == sorted(present)[-SERVED_VERSIONS:]:
        message.version_policy.latest.num_versions = SERVED_VERSIONS
    else:
        message.version_policy.specific.versions.extend(sorted(served))


def to_text(message: pb.ModelConfig) -> str:
    """The text of config.pbtxt."""
    from google.protobuf import text_format

    text: str = text_format.MessageToString(message)
    return text


def _set_engine(message: pb.ModelConfig, serving: Serving) -> None:
    message.backend, message.platform, message.default_model_filename = "", "", ""
    message.ClearField("optimization")
    for key in ENGINE_PARAMETERS:
        message.parameters.pop(key, None)
    if serving.engine == "tensorrt":
        message.platform = "tensorrt_plan"
        graphs = message.optimization.cuda
        graphs.graphs = bool(serving.graph_batches)
        for size in serving.graph_batches:
            graphs.graph_spec.add(batch_size=size)
        return
    assert serving.engine
    message.backend = serving.engine
    if serving.engine == "openvino":
        message.default_model_filename = ONNX_FILE  # which is not what this backend looks for by itself
    else:
        # A memory pattern keeps a second copy of all activations for every batch size met, and is no faster.
        message.parameters["enable_mem_pattern"].string_value = "0"


def _thread_parameters(backend: str, threads: int) -> dict[str, str]:
    return {"onnxruntime": {"intra_op_thread_count": str(threads)}}.get(backend, {})
