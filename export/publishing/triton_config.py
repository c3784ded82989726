"""Manifest -> config.pbtxt, through Triton's ModelConfig protobuf, for networks of this project and any other.

Source: triton-inference-server/common, protobuf/model_config.proto.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from export.errors import PublishError
from export.publishing.artifact import ONNX_FILE, Artifact
from export.publishing.manifest import Manifest, Tensor
from export.publishing.sample import Arrays
from models.config import INPUT_NAME, OUTPUT_NAME

if TYPE_CHECKING:
    from tritonclient.grpc import model_config_pb2 as pb

LABELS_FILE = "labels.txt"

# Larger batches leave a CPU's cache. Clients split them.
MAX_BATCH_SIZE = 256
# Images at once inside a transformer, in the project's ONNX Runtime backend.
INNER_BATCH = 64
MAX_QUEUE_SIZE = 16
STANDBY_PRIORITY = 1000  # the second instance works only while the first does
# Of a float32 logit. A newer version may allow TF32 to older versions, which moves a logit of 10 by up to 0.005.
PROBE_TOLERANCE = 0.01
# Larger batches keep a GPU busy without a CUDA graph.
LARGEST_GRAPH = 256
# A new version and the version to fall back to.
SERVED_VERSIONS = 2

WARMUP_NAME = "sample"  # of the warm-up of another network: the sample's inputs

Engine = Literal["onnxruntime", "openvino", "tensorrt"]
THREADS = {"onnxruntime": "intra_op_thread_count", "openvino": "INFERENCE_NUM_THREADS"}
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


@dataclass(frozen=True)
class Serving:
    """None keeps the value in config.pbtxt or, for a new model, means the default.

    `instances`: per device. `threads`: of each on a CPU; 0: one per core. `max_batch`: in images; TensorRT
    takes the engine's. `device`: default the server's GPUs, if any. `bfloat16`: only for OpenVINO.
    """

    engine: Engine | None = None
    instances: int | None = None
    threads: int | None = None
    bfloat16: bool | None = None
    max_batch: int | None = None
    device: Literal["cpu", "cuda"] | None = None


def new_config(name: str, manifest: Manifest, serving: Serving) -> pb.ModelConfig:
    """`describe`, `set_limits`, `warm_up` and `serve_versions` add what depends on the versions.

    Triton joins requests only if all inputs and outputs share a free first axis. Raises PublishError.
    """
    from tritonclient.grpc import model_config_pb2 as pb

    own, engine = manifest.config, serving.engine or "onnxruntime"
    batched = _is_batched(manifest)
    # OpenVINO's native backend fixes the batch unless the dims are open. Clients read `max_images`.
    open_dims = engine == "openvino"
    # KIND_AUTO takes the server's GPU, if any; OpenVINO's backend knows only CPUs.
    kind = pb.ModelInstanceGroup.KIND_CPU if open_dims else pb.ModelInstanceGroup.KIND_AUTO
    message = pb.ModelConfig(name=name, instance_group=[pb.ModelInstanceGroup(kind=kind)])
    for added, forms in ((message.input, manifest.inputs), (message.output, manifest.outputs)):
        _add_tensors(added, forms, batched and not open_dims)
    if engine == "tensorrt":
        message.platform = "tensorrt_plan"
    else:
        message.backend = engine
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
    if open_dims:
        message.default_model_filename = ONNX_FILE  # the backend's default name differs
    defaults = Serving(instances=1, threads=0, max_batch=MAX_BATCH_SIZE if own else None)
    asked = {name: value for name, value in vars(serving).items() if value is not None}
    configure(message, manifest, replace(defaults, **asked))
    return message


def _is_batched(manifest: Manifest) -> bool:
    forms = {**manifest.inputs, **manifest.outputs}
    for name, form in forms.items():
        if form.dtype not in TYPES:
            raise PublishError(f"{name}: expected numbers, found {form.dtype}")
        if not form.shape:
            raise PublishError(f"{name}: expected at least one axis, found none: Triton takes no scalars")
    first = {form.shape[0] for form in forms.values()}
    return len(first) == 1 and isinstance(next(iter(first)), str)


def _add_tensors(added: Any, forms: Mapping[str, Tensor], batched: bool) -> None:
    from tritonclient.grpc import model_config_pb2 as pb

    for name, form in forms.items():
        dims = [size if isinstance(size, int) else -1 for size in form.shape[1 if batched else 0 :]]
        entry = added.add(name=name, data_type=pb.DataType.Value(TYPES[form.dtype]), dims=dims or [1])
        if not dims:  # a number for each row
            entry.reshape.SetInParent()


def _take_batches(message: pb.ModelConfig, smallest: int, largest: int) -> None:
    """Also warms up: no user waits for memory and GPU kernels."""
    from tritonclient.grpc import model_config_pb2 as pb

    shape, whole = image_shape(message), engine_of(message) == "openvino"  # its dims include the batch
    if whole:
        message.parameters["max_images"].string_value = str(largest)
    else:
        message.max_batch_size = largest
    message.ClearField("model_warmup")
    for size in sorted({smallest, largest}):
        dims = [size, *shape] if whole else shape
        image = pb.ModelWarmup.Input(data_type=pb.TYPE_UINT8, dims=dims, zero_data=True)
        message.model_warmup.add(name=f"batch {size}", batch_size=1 if whole else size, inputs={INPUT_NAME: image})


def engine_of(message: pb.ModelConfig) -> str:
    return "tensorrt" if message.platform == "tensorrt_plan" else str(message.backend)


def image_shape(message: pb.ModelConfig) -> tuple[int, ...]:
    """(C, H, W)."""
    return tuple(message.input[0].dims)[-3:]


def configure(message: pb.ModelConfig, manifest: Manifest, serving: Serving) -> None:
    """Without batches Triton takes neither their size nor a queue. Raises PublishError."""
    from tritonclient.grpc import model_config_pb2 as pb

    if serving.max_batch is not None and manifest.config:
        _take_batches(message, 1, serving.max_batch)
    elif serving.max_batch is not None:
        if not message.max_batch_size:
            raise PublishError(f"{message.name}: expected a common free first axis for max_batch, found none")
        message.max_batch_size = serving.max_batch
    for each in message.instance_group if serving.device else ():
        each.kind = pb.ModelInstanceGroup.KIND_GPU if serving.device == "cuda" else pb.ModelInstanceGroup.KIND_CPU
    if serving.threads is not None and (parameter := THREADS.get(engine_of(message))):
        message.parameters[parameter].string_value = str(serving.threads)
    if engine_of(message) == serving.engine == "openvino" and serving.bfloat16 is not None:  # else nothing was measured
        message.parameters.pop("HINT_BF16", None)
        if serving.bfloat16:
            message.parameters["HINT_BF16"].string_value = "YES"
    if serving.instances is not None:
        _set_instances(message, serving.instances)


def _set_instances(message: pb.ModelConfig, count: int) -> None:
    from tritonclient.grpc import model_config_pb2 as pb

    group = message.instance_group[0] if message.instance_group else pb.ModelInstanceGroup()
    del message.instance_group[:]
    group.count = count
    group.ClearField("rate_limiter")
    message.instance_group.append(group)
    if not message.max_batch_size and engine_of(message) != "openvino":  # whose dims include the batch
        return
    message.dynamic_batching.ClearField("default_queue_policy")
    if count == 1 and (engine_of(message) == "tensorrt" or group.kind == pb.ModelInstanceGroup.KIND_GPU):
        return  # a second instance costs GPU memory
    if count == 1:
        # With a bound and a single instance, a request can miss its wake-up: docs/decisions.md, Serving.
        message.instance_group[0].rate_limiter.priority = 1
        standby = message.instance_group.add()
        standby.CopyFrom(group)
        standby.rate_limiter.priority = STANDBY_PRIORITY
    message.dynamic_batching.default_queue_policy.max_queue_size = MAX_QUEUE_SIZE


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


def set_limits(message: pb.ModelConfig, manifests: Collection[Manifest]) -> None:
    """Gives a TensorRT model the batch sizes that every engine in `manifests` takes; Triton refuses larger limits.

    A batch runs in the CUDA graph of the next power of two. Raises PublishError.
    """
    profiles = [manifest.origin.engine.profile for manifest in manifests if manifest.origin.engine]
    if len(profiles) < len(manifests):
        raise PublishError(f"{message.name}: expected the profile of an engine in the manifest, found none")
    smallest, largest = max(each.min for each in profiles), min(each.max for each in profiles)
    if smallest > largest:
        ranges = " and ".join(f"{each.min} to {each.max}" for each in profiles)
        raise PublishError(
            f"{message.name}: expected engines that share a batch size, found {ranges}; publish under another --name"
        )
    _take_batches(message, smallest, largest)
    cuda = message.optimization.cuda
    cuda.Clear()
    for size in (2**power for power in range(LARGEST_GRAPH.bit_length())):
        if smallest <= size <= largest:
            graph = cuda.graph_spec.add(batch_size=size)
            graph.graph_lower_bound.batch_size = max(smallest, size // 2 + 1)
            for each in (graph, graph.graph_lower_bound):  # without dims no request finds its graph
                each.input[INPUT_NAME].dim[:] = image_shape(message)
    cuda.graphs = bool(cuda.graph_spec)


def set_tf32(message: pb.ModelConfig, precision: str) -> None:
    """Forbids float32 models TF32, ONNX Runtime's default on CUDA.

    Other models keep it: `use_tf32` 0 also keeps float16 convolutions off the tensor cores.
    """
    accelerators = message.optimization.execution_accelerators.gpu_execution_accelerator
    cuda = next((each for each in accelerators if each.name == "cuda"), None) or accelerators.add(name="cuda")
    cuda.parameters["use_tf32"] = "0" if precision == "fp32" else "1"


def describe(message: pb.ModelConfig, manifest: Manifest) -> None:
    """Writes what clients and operators read of a network of this project, and whether TF32 is allowed."""
    if engine_of(message) == "onnxruntime":
        set_tf32(message, manifest.origin.precision)
    if manifest.origin.network is None:
        return
    origin, network = manifest.origin, manifest.origin.network
    described = {
        "model_config": network.config.to_json(),
        "rewrites": json.dumps(origin.rewrites),
        "max_abs_error": f"{network.max_abs_error:.3e}",
        "checkpoint_sha256": network.checkpoint_sha256,
        "test_accuracy": None if origin.accuracy is None else str(origin.accuracy),
        "temperature": None if network.temperature is None else str(network.temperature),
    }
    for key, value in described.items():
        if value is None:
            message.parameters.pop(key, None)
        else:
            message.parameters[key].string_value = value


def store_probe(message: pb.ModelConfig, versions: Mapping[int, Artifact]) -> None:
    """Writes the highest version's image and each version's logits, for a probe without the files.

    A version with another image has it beside its logits. Below float32 processors differ: tolerance null, only the
    class counts.
    """
    message.parameters.pop("probe", None)
    samples = {number: each.sample for number, each in versions.items() if each.manifest.config is not None}
    if not samples:
        return
    image, answers = samples[max(samples)].inputs[INPUT_NAME], dict[str, dict[str, Any]]()
    for number, sample in samples.items():
        exact = versions[number].origin.precision == "fp32" and "HINT_BF16" not in message.parameters
        logits = sample.outputs[OUTPUT_NAME][0].tolist()
        answers[str(number)] = {"logits": logits, "tolerance": PROBE_TOLERANCE if exact else None}
        if not np.array_equal(sample.inputs[INPUT_NAME], image):
            answers[str(number)]["image"] = _packed(sample.inputs[INPUT_NAME])
    message.parameters["probe"].string_value = json.dumps({"image": _packed(image), "answers": answers})


def _packed(image: NDArray[np.generic]) -> str:
    return base64.b64encode(zlib.compress(image[0].tobytes(), 9)).decode()


def served_versions(message: pb.ModelConfig, present: Sequence[int]) -> list[int]:
    """Ascending."""
    policy, ascending = message.version_policy, sorted(present)
    kind = policy.WhichOneof("policy_choice")
    if kind == "all":
        return ascending
    if kind == "specific":
        return sorted(set(ascending) & set(policy.specific.versions))
    return ascending[-(policy.latest.num_versions or 1) :]


def serve_versions(message: pb.ModelConfig, served: Sequence[int], present: Sequence[int]) -> None:
    message.version_policy.Clear()
    if sorted(served) == sorted(present)[-SERVED_VERSIONS:]:
        message.version_policy.latest.num_versions = SERVED_VERSIONS
    else:
        message.version_policy.specific.versions.extend(sorted(served))


def to_text(message: pb.ModelConfig) -> str:
    from google.protobuf import text_format

    text: str = text_format.MessageToString(message)
    return text
