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
# A new version and the one to fall back to.
SERVED_VERSIONS = 2

Engine = Literal["onnxruntime", "openvino", "tensorrt"]
# Of each engine that runs on CPUs, the parameter that holds the number of its threads.
THREADS = {"onnxruntime": "intra_op_thread_count", "openvino": "INFERENCE_NUM_THREADS"}


@dataclass(frozen=True)
class Serving:
    """How a model is served; what is None stays as its config.pbtxt has it, and is the default for a new model.

    `instances` are copies of the model on every device, `threads` those of each copy on a CPU, 0 for one a core; 1 and
    0 for a new model. OpenVINO computes in `bfloat16` if it is to. On a GPU, TensorRT takes up to `max_batch_size`
    images and replays a CUDA graph for a batch of any of `graph_batches`.
    """

    engine: Engine | None = None
    instances: int | None = None
    threads: int | None = None
    bfloat16: bool = False
    max_batch_size: int = MAX_BATCH_SIZE
    graph_batches: Sequence[int] = ()


def new_config(name: str, config: ModelConfig, serving: Serving) -> pb.ModelConfig:
    """A model to serve as `name`, complete but for what `describe` and `serve_versions` say of its versions."""
    from tritonclient.grpc import model_config_pb2 as pb

    engine = serving.engine or "onnxruntime"
    # The native OpenVINO backend would fix the batch to max_batch_size; it takes any where the dims leave it open. Then
    # Triton does not join requests, and clients are told of the largest that is sensible.
    batch = [-1] if engine == "openvino" else []
    message = pb.ModelConfig(
        name=name,
        max_batch_size=0 if batch else serving.max_batch_size,
        input=[pb.ModelInput(name=INPUT_NAME, data_type=pb.TYPE_UINT8, dims=[*batch, *config.input_shape])],
        output=[
            pb.ModelOutput(
                name=OUTPUT_NAME,
                data_type=pb.TYPE_FP32,
                dims=[*batch, config.num_classes],
                label_filename=LABELS_FILE,
            )
        ],
        # KIND_AUTO runs on a GPU where there is one; OpenVINO's backend knows CPUs alone.
        instance_group=[
            pb.ModelInstanceGroup(kind=pb.ModelInstanceGroup.KIND_CPU if batch else pb.ModelInstanceGroup.KIND_AUTO)
        ],
        # What has queued up while the instances were busy is answered together. No delay and no preferred sizes: none
        # waits for more to come, which cost every lone request 0.2 ms, and any batch is as good as a rounder one.
        dynamic_batching=pb.ModelDynamicBatching(),
        # The same picture hardly comes twice, and a look into the cache costs every request.
        response_cache=pb.ModelResponseCache(enable=False),
        # The first requests would pay for memory and, on a GPU, for kernels: of the smallest and the largest batch.
        model_warmup=[_warmup(size, config, bool(batch)) for size in (1, serving.max_batch_size)],
    )
    if engine == "tensorrt":
        message.platform = "tensorrt_plan"
        message.optimization.cuda.graphs = bool(serving.graph_batches)
        for size in serving.graph_batches:
            message.optimization.cuda.graph_spec.add(batch_size=size)
    else:
        message.backend = engine
    if engine == "onnxruntime":
        # A memory pattern keeps a second copy of all activations for every batch size met, and is no faster.
        message.parameters["enable_mem_pattern"].string_value = "0"
    if engine == "openvino":
        message.default_model_filename = ONNX_FILE  # which is not what this backend looks for by itself
        message.parameters["max_images"].string_value = str(serving.max_batch_size)
        if serving.bfloat16:
            message.parameters["HINT_BF16"].string_value = "YES"
    configure(message, Serving(instances=serving.instances or 1, threads=serving.threads or 0))
    return message


def _warmup(size: int, config: ModelConfig, whole: bool) -> pb.ModelWarmup:
    """A first request of `size` empty images; where Triton adds no batch dimension, the request is `whole`."""
    from tritonclient.grpc import model_config_pb2 as pb

    dims = [size, *config.input_shape] if whole else config.input_shape
    image = pb.ModelWarmup.Input(data_type=pb.TYPE_UINT8, dims=dims, zero_data=True)
    return pb.ModelWarmup(name=f"batch {size}", batch_size=1 if whole else size, inputs={INPUT_NAME: image})


def engine_of(message: pb.ModelConfig) -> str:
    """What runs the model, as in `Serving`."""
    return "tensorrt" if message.platform == "tensorrt_plan" else str(message.backend)


def image_shape(message: pb.ModelConfig) -> tuple[int, ...]:
    """(C, H, W) of the images that the model takes."""
    return tuple(message.input[0].dims)[-3:]


def configure(message: pb.ModelConfig, serving: Serving) -> None:
    """Writes into `message` how many copies of the model and threads `serving` asks for."""
    from tritonclient.grpc import model_config_pb2 as pb

    if serving.threads is not None and (parameter := THREADS.get(engine_of(message))):
        message.parameters[parameter].string_value = str(serving.threads)
    if serving.instances is None:
        return
    group = message.instance_group[0] if message.instance_group else message.instance_group.add()
    group.count = serving.instances
    if serving.instances == 1:
        # Under a policy Triton prepares no batch while its only instance works, and a request that comes just as an
        # answer leaves now and then sleeps for 500 ms (measured: 0.2 to 0.5 % of requests in sequence, else none).
        message.dynamic_batching.ClearField("default_queue_policy")
        return
    message.dynamic_batching.default_queue_policy.CopyFrom(
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
