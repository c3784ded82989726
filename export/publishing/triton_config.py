"""Manifests and options -> config.pbtxt, through Triton's protobuf, for networks of this project and any other.

In: a `Model`, what is asked of its serving, its configuration until now. Out: its configuration. Touches no file.
Source: triton-inference-server/common, protobuf/model_config.proto.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from export.errors import PublishError
from export.publishing.config_parameters import Version, described, probe
from export.publishing.manifest import Manifest
from export.publishing.new_config import MAX_BATCH_SIZE, Engine, engine_of, image_shape, new_config
from export.publishing.warm_up import name_samples, zeros
from models.networks.config import INPUT_NAME, ModelConfig

if TYPE_CHECKING:
    from tritonclient.grpc import model_config_pb2 as pb

# Rows of a request that goes to the backend's session for single requests.
LONE_ROWS = 1
# Requests. Texts that run together are cheaper the more of them wait.
MAX_QUEUE_SIZE, JOINED_QUEUE_SIZE = 16, 64
STANDBY_PRIORITY = 1000  # the second instance works only while the first does
# Larger batches keep a GPU busy without a CUDA graph.
LARGEST_GRAPH = 256
# A new version and the version to fall back to.
SERVED_VERSIONS = 2

THREADS = {"onnxruntime": "intra_op_thread_count", "openvino": "INFERENCE_NUM_THREADS"}


@dataclass(frozen=True)
class Serving:
    """None keeps the value in config.pbtxt or, for a new model, means the default.

    `instances`: per device. `threads`: of each on a CPU; 0: one per core. `max_batch`: in images; TensorRT
    takes the engine's. `device`: default the server's GPUs, if any. `bfloat16`: only for OpenVINO. `goal`: whether a
    second session of our ONNX Runtime backend serves single rows sooner.
    """

    engine: Engine | None = None
    instances: int | None = None
    threads: int | None = None
    bfloat16: bool | None = None
    max_batch: int | None = None
    device: Literal["cpu", "cuda"] | None = None
    goal: Literal["latency", "throughput"] | None = None


@dataclass(frozen=True)
class Model:
    """What config.pbtxt tells of a model.

    `present`, `served`: the numbers of its versions, ascending; the highest served version answers requests that name
    none. `versions`: the served versions whose manifest is whole, the highest among them.
    """

    name: str
    present: Sequence[int]
    served: Sequence[int]
    versions: Mapping[int, Version]

    @property
    def default(self) -> Manifest:
        return self.versions[max(self.served)].manifest


def config_pbtxt(model: Model, serving: Serving, held: pb.ModelConfig | None = None) -> pb.ModelConfig:
    """`held`, the configuration until now, stays in what neither `serving` nor the versions set.

    Each step owns its fields; no step needs another's. Raises PublishError.
    """
    from tritonclient.grpc import model_config_pb2 as pb

    message = pb.ModelConfig()
    message.CopyFrom(held or new_config(model.name, model.default, serving.engine or "onnxruntime"))
    asked = serving if held else _with_defaults(serving, model.default)
    limits = _limits(model, engine_of(message), asked)
    _set_batches(message, model.default, limits)
    _set_warm_up(message, model, limits)
    _set_instances(message, asked, JOINED_QUEUE_SIZE if _joined_lengths(message, model) else MAX_QUEUE_SIZE)
    _set_optimization(message, model.default, limits)
    _set_parameters(message, model, asked, limits)
    _set_policy(message, model)
    return message


def _with_defaults(serving: Serving, manifest: Manifest) -> Serving:
    ours = isinstance(manifest.config, ModelConfig)  # so small that a second session costs little
    small = ours and serving.engine in (None, "onnxruntime")
    largest = MAX_BATCH_SIZE if manifest.config else None
    defaults = Serving(instances=1, threads=0, max_batch=largest, goal="latency" if small else None)
    return replace(defaults, **{name: value for name, value in vars(serving).items() if value is not None})


def _limits(model: Model, engine: str, asked: Serving) -> tuple[int, int] | None:
    """The smallest and the largest batch; None: as until now.

    Every served TensorRT engine must take both; Triton refuses larger limits. Raises PublishError.
    """
    if engine != "tensorrt":
        return None if asked.max_batch is None else (1, asked.max_batch)
    engines = [each.manifest.origin.engine for each in model.versions.values()]
    profiles = [each.profile for each in engines if each]
    if len(profiles) < len(engines):
        raise PublishError(f"{model.name}: expected the profile of an engine in the manifest, found none")
    smallest, largest = max(each.min for each in profiles), min(each.max for each in profiles)
    if smallest > largest:
        ranges = " and ".join(f"{each.min} to {each.max}" for each in profiles)
        raise PublishError(
            f"{model.name}: expected engines that share a batch size, found {ranges}; publish under another --name"
        )
    return smallest, largest


def _set_batches(message: pb.ModelConfig, manifest: Manifest, limits: tuple[int, int] | None) -> None:
    if limits is None or (manifest.config and engine_of(message) == "openvino"):  # whose dims include the batch
        return
    if not message.max_batch_size:
        raise PublishError(f"{message.name}: expected a common free first axis for max_batch, found none")
    message.max_batch_size = limits[1]


def _set_warm_up(message: pb.ModelConfig, model: Model, limits: tuple[int, int] | None) -> None:
    """No user waits for memory and GPU kernels."""
    if model.default.config is None:
        number = max(model.present)  # versions may differ in the shape of their inputs
        newest = model.versions.get(number)
        name_samples(message, number, newest.sample.inputs if newest and newest.sample else None)
    elif limits is not None:
        message.ClearField("model_warmup")
        message.model_warmup.extend(zeros(message, size) for size in sorted({*limits}))


def _set_instances(message: pb.ModelConfig, asked: Serving, queue: int) -> None:
    """Their device and number, and the bound on their queue; without batches Triton takes no queue.

    Without a number a bound that is neither of ours stays.
    """
    from tritonclient.grpc import model_config_pb2 as pb

    gpu, engine = pb.ModelInstanceGroup.KIND_GPU, engine_of(message)
    for each in message.instance_group if asked.device else ():
        each.kind = gpu if asked.device == "cuda" else pb.ModelInstanceGroup.KIND_CPU
    if asked.instances is None:
        policy = message.dynamic_batching.default_queue_policy
        if policy.max_queue_size in (MAX_QUEUE_SIZE, JOINED_QUEUE_SIZE):
            policy.max_queue_size = queue
        return
    group = message.instance_group[0] if message.instance_group else pb.ModelInstanceGroup()
    del message.instance_group[:]
    group.count = asked.instances
    group.ClearField("rate_limiter")
    message.instance_group.append(group)
    if not message.HasField("dynamic_batching"):
        return
    message.dynamic_batching.ClearField("default_queue_policy")
    if asked.instances == 1:
        if engine == "tensorrt" or group.kind == gpu:
            return  # a second instance costs GPU memory
        # With a bound and a single instance, a request can miss its wake-up: docs/decisions.md, Serving.
        message.instance_group[0].rate_limiter.priority = 1
        message.instance_group.append(group)
        message.instance_group[1].rate_limiter.priority = STANDBY_PRIORITY
    message.dynamic_batching.default_queue_policy.max_queue_size = queue


def _set_optimization(message: pb.ModelConfig, manifest: Manifest, limits: tuple[int, int] | None) -> None:
    if engine_of(message) == "onnxruntime":
        _set_tf32(message, manifest.origin.precision)
    if engine_of(message) == "tensorrt" and limits:
        _set_cuda_graphs(message, *limits)


def _set_tf32(message: pb.ModelConfig, precision: str) -> None:
    """Forbids float32 models TF32, ONNX Runtime's default on CUDA.

    Other models keep it: `use_tf32` 0 also keeps float16 convolutions off the tensor cores.
    """
    accelerators = message.optimization.execution_accelerators.gpu_execution_accelerator
    cuda = next((each for each in accelerators if each.name == "cuda"), None) or accelerators.add(name="cuda")
    cuda.parameters["use_tf32"] = "0" if precision == "fp32" else "1"


def _set_cuda_graphs(message: pb.ModelConfig, smallest: int, largest: int) -> None:
    """A batch runs in the graph of the next power of two."""
    cuda = message.optimization.cuda
    cuda.Clear()
    for size in (2**power for power in range(LARGEST_GRAPH.bit_length())):
        if smallest <= size <= largest:
            graph = cuda.graph_spec.add(batch_size=size)
            graph.graph_lower_bound.batch_size = max(smallest, size // 2 + 1)
            for each in (graph, graph.graph_lower_bound):  # without dims no request finds its graph
                each.input[INPUT_NAME].dim[:] = image_shape(message)
    cuda.graphs = bool(cuda.graph_spec)


def _set_parameters(message: pb.ModelConfig, model: Model, asked: Serving, limits: tuple[int, int] | None) -> None:
    engine, parameters = engine_of(message), described(model.default)
    if asked.threads is not None and engine in THREADS:
        parameters[THREADS[engine]] = str(asked.threads)
    if engine == asked.engine == "openvino" and asked.bfloat16 is not None:  # another engine's does not tell
        parameters["HINT_BF16"] = "YES" if asked.bfloat16 else None
    if engine == "openvino" and model.default.config and limits:
        parameters["max_images"] = str(limits[1])
    parameters["joined_lengths"] = _joined_lengths(message, model)
    if asked.goal is not None:
        if engine != "onnxruntime":
            raise PublishError(f"{model.name}: expected a model for onnxruntime with --for, found one for {engine}")
        parameters["lone_rows"] = str(LONE_ROWS) if asked.goal == "latency" else None
    bfloat16 = "HINT_BF16" in message.parameters if "HINT_BF16" not in parameters else bool(parameters["HINT_BF16"])
    parameters["probe"] = probe(model.versions, bfloat16)
    for name, text in parameters.items():
        message.parameters.pop(name, None)
        if text is not None:
            message.parameters[name].string_value = text


def _joined_lengths(message: pb.ModelConfig, model: Model) -> str | None:
    """How requests of different lengths run together, if the engine joins them and each served version is proved."""
    if engine_of(message) != "onnxruntime":
        return None
    told = {each.manifest.origin.joined_lengths for each in model.versions.values()}
    return told.pop() if len(told) == 1 and len(model.versions) == len(model.served) else None


def _set_policy(message: pb.ModelConfig, model: Model) -> None:
    message.version_policy.Clear()
    if sorted(model.served) == sorted(model.present)[-SERVED_VERSIONS:]:
        message.version_policy.latest.num_versions = SERVED_VERSIONS
    else:
        message.version_policy.specific.versions.extend(sorted(model.served))
