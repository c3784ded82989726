"""Makes config.pbtxt, as Triton's protobuf message, for networks of this project and any other.

In: the versions of a model, the options of its serving, and its configuration until now. Out: the new configuration.
Touches no file. Source: triton-inference-server/common, protobuf/model_config.proto.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from export.errors import PublishError
from export.publishing.config_parameters import Version, config_parameters, probe
from export.publishing.manifest import Manifest
from export.publishing.new_config import MAX_BATCH_SIZE, Engine, engine_of, image_shape, new_config
from export.publishing.warm_up import name_samples, zeros
from models.networks.config import INPUT_NAME, ModelConfig

if TYPE_CHECKING:
    from tritonclient.grpc import model_config_pb2 as pb

LONE_ROWS = 1  # requests with so many rows go to the backend's session for single requests
# In requests. More may wait if requests of different lengths are joined: a larger batch costs less for each.
MAX_QUEUE_SIZE, JOINED_QUEUE_SIZE = 16, 64
STANDBY_PRIORITY = 1000  # the second instance works only while the first does
LARGEST_GRAPH = 256  # images; larger batches keep a GPU busy without a CUDA graph
SERVED_VERSIONS = 2  # the newest version, and the version to fall back to

THREADS = {"onnxruntime": "intra_op_thread_count", "openvino": "INFERENCE_NUM_THREADS"}  # engine -> parameter


@dataclass(frozen=True)
class Serving:
    """Options of serving. None keeps the value in config.pbtxt; for a new model it means the default.

    `instances`: per device. `threads`: of an instance on a CPU; 0: one per core. `bfloat16`: only for OpenVINO.
    `max_batch`: in images; a TensorRT engine has its own. `device`: by default the server's GPUs, else the CPU. `goal`:
    for "latency" our ONNX Runtime backend opens a second session, so that single rows do not wait for batches.
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
    """A model and its versions.

    `present`, `served`: numbers of the versions, ascending; the highest served version answers requests that name none.
    `versions`: number -> served version. Served versions with a damaged manifest are left out, but never the highest.
    """

    name: str
    present: Sequence[int]
    served: Sequence[int]
    versions: Mapping[int, Version]

    @property
    def default(self) -> Manifest:
        """The manifest of the version that answers requests that name none."""
        return self.versions[max(self.served)].manifest


def config_pbtxt(model: Model, serving: Serving, current: pb.ModelConfig | None = None) -> pb.ModelConfig:
    """The configuration of a model. `current`: the configuration until now; None for a new model.

    What neither `serving` nor the versions set stays as in `current`, also what an operator has written there. The
    steps set different fields and do not depend on each other. Raises PublishError.
    """
    from tritonclient.grpc import model_config_pb2 as pb

    message = pb.ModelConfig()
    message.CopyFrom(current or new_config(model.name, model.default, serving.engine or "onnxruntime"))
    options = serving if current else _with_defaults(serving, model.default)
    limits = _batch_limits(model, engine_of(message), options)
    _set_batches(message, model.default, limits)
    _set_warm_up(message, model, limits)
    _set_instances(message, options, JOINED_QUEUE_SIZE if _joined_lengths(message, model) else MAX_QUEUE_SIZE)
    _set_optimization(message, model.default, limits)
    _set_parameters(message, model, options, limits)
    _set_policy(message, model)
    return message


def _with_defaults(serving: Serving, manifest: Manifest) -> Serving:
    trained_here = isinstance(manifest.config, ModelConfig)  # so small that a second session costs little
    second_session = trained_here and serving.engine in (None, "onnxruntime")
    max_batch = MAX_BATCH_SIZE if manifest.config else None
    defaults = Serving(instances=1, threads=0, max_batch=max_batch, goal="latency" if second_session else None)
    return replace(defaults, **{name: value for name, value in vars(serving).items() if value is not None})


def _batch_limits(model: Model, engine: str, options: Serving) -> tuple[int, int] | None:
    """The smallest and the largest batch; None: they stay as they are.

    All served TensorRT engines must take both: Triton refuses larger limits than an engine has. Raises PublishError.
    """
    if engine != "tensorrt":
        return None if options.max_batch is None else (1, options.max_batch)
    engines = [version.manifest.origin.engine for version in model.versions.values()]
    profiles = [plan.profile for plan in engines if plan]
    if len(profiles) < len(engines):
        raise PublishError(f"{model.name}: expected the profile of an engine in the manifest, found none")
    smallest, largest = max(profile.min for profile in profiles), min(profile.max for profile in profiles)
    if smallest > largest:
        ranges = " and ".join(f"{profile.min} to {profile.max}" for profile in profiles)
        raise PublishError(
            f"{model.name}: expected engines that share a batch size, found {ranges}; publish under another --name"
        )
    return smallest, largest


def _set_batches(message: pb.ModelConfig, manifest: Manifest, limits: tuple[int, int] | None) -> None:
    batch_in_dims = manifest.config and engine_of(message) == "openvino"
    if limits is None or batch_in_dims:
        return
    if not message.max_batch_size:
        raise PublishError(f"{message.name}: expected a common free first axis for max_batch, found none")
    message.max_batch_size = limits[1]


def _set_warm_up(message: pb.ModelConfig, model: Model, limits: tuple[int, int] | None) -> None:
    """Requests at loading, so that no user waits until memory is allocated and GPU kernels are loaded."""
    if model.default.config is None:
        number = max(model.present)  # versions may differ in the shapes of their inputs
        newest = model.versions.get(number)
        name_samples(message, number, newest.sample.inputs if newest and newest.sample else None)
    elif limits is not None:
        message.ClearField("model_warmup")
        message.model_warmup.extend(zeros(message, size) for size in sorted({*limits}))


def _set_instances(message: pb.ModelConfig, options: Serving, queue: int) -> None:
    """Device and number of the instances, and the length of their queue. A model without batches has no queue.

    If `options` has no number of instances, a queue's length that an operator has set stays.
    """
    from tritonclient.grpc import model_config_pb2 as pb

    gpu, engine = pb.ModelInstanceGroup.KIND_GPU, engine_of(message)
    for group in message.instance_group if options.device else ():
        group.kind = gpu if options.device == "cuda" else pb.ModelInstanceGroup.KIND_CPU
    if options.instances is None:
        policy = message.dynamic_batching.default_queue_policy
        if policy.max_queue_size in (MAX_QUEUE_SIZE, JOINED_QUEUE_SIZE):
            policy.max_queue_size = queue
        return
    group = message.instance_group[0] if message.instance_group else pb.ModelInstanceGroup()
    del message.instance_group[:]
    group.count = options.instances
    group.ClearField("rate_limiter")
    message.instance_group.append(group)
    if not message.HasField("dynamic_batching"):
        return
    message.dynamic_batching.ClearField("default_queue_policy")
    if options.instances == 1:
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
    """Turns TF32, ONNX Runtime's default on CUDA, off for float32 models, which must be exact.

    Other precisions keep it: `use_tf32` 0 also keeps float16 convolutions off the tensor cores.
    """
    accelerators = message.optimization.execution_accelerators.gpu_execution_accelerator
    cuda = next((entry for entry in accelerators if entry.name == "cuda"), None) or accelerators.add(name="cuda")
    cuda.parameters["use_tf32"] = "0" if precision == "fp32" else "1"


def _set_cuda_graphs(message: pb.ModelConfig, smallest: int, largest: int) -> None:
    """Records a CUDA graph for every power of two; a batch runs in the next larger graph."""
    cuda = message.optimization.cuda
    cuda.Clear()
    for size in (2**power for power in range(LARGEST_GRAPH.bit_length())):
        if smallest <= size <= largest:
            graph = cuda.graph_spec.add(batch_size=size)
            graph.graph_lower_bound.batch_size = max(smallest, size // 2 + 1)
            for bound in (graph, graph.graph_lower_bound):  # without dims Triton uses the graph for no request
                bound.input[INPUT_NAME].dim[:] = image_shape(message)
    cuda.graphs = bool(cuda.graph_spec)


def _set_parameters(message: pb.ModelConfig, model: Model, options: Serving, limits: tuple[int, int] | None) -> None:
    """Sets or removes the parameters that the engine, the clients and the prober read."""
    engine, parameters = engine_of(message), config_parameters(model.default)
    if options.threads is not None and engine in THREADS:
        parameters[THREADS[engine]] = str(options.threads)
    if engine == options.engine == "openvino" and options.bfloat16 is not None:
        parameters["HINT_BF16"] = "YES" if options.bfloat16 else None
    if engine == "openvino" and model.default.config and limits:
        parameters["max_images"] = str(limits[1])
    parameters["joined_lengths"] = _joined_lengths(message, model)
    if options.goal is not None:
        if engine != "onnxruntime":
            raise PublishError(f"{model.name}: expected a model for onnxruntime with --for, found one for {engine}")
        parameters["lone_rows"] = str(LONE_ROWS) if options.goal == "latency" else None
    bfloat16 = "HINT_BF16" in message.parameters if "HINT_BF16" not in parameters else bool(parameters["HINT_BF16"])
    parameters["probe"] = probe(model.versions, bfloat16)
    for name, text in parameters.items():
        message.parameters.pop(name, None)
        if text is not None:
            message.parameters[name].string_value = text


def _joined_lengths(message: pb.ModelConfig, model: Model) -> str | None:
    """The parameter `joined_lengths`, if the engine can join requests and all served versions have the same proof."""
    if engine_of(message) != "onnxruntime":
        return None
    proved = {version.manifest.origin.joined_lengths for version in model.versions.values()}
    return proved.pop() if len(proved) == 1 and len(model.versions) == len(model.served) else None


def _set_policy(message: pb.ModelConfig, model: Model) -> None:
    """Which versions Triton serves: the newest two as `latest`, which names no numbers; other versions by number."""
    message.version_policy.Clear()
    if sorted(model.served) == sorted(model.present)[-SERVED_VERSIONS:]:
        message.version_policy.latest.num_versions = SERVED_VERSIONS
    else:
        message.version_policy.specific.versions.extend(sorted(model.served))
