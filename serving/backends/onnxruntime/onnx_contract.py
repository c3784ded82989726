"""What config.pbtxt promises against what model.onnx holds, checked at load as strictly as natively.

In: the model's configuration as Triton's JSON, and an ONNX Runtime session. Out: nothing, or ModelRefused. What the
native backend refuses is refused here, so that a repository that loads here loads there. Strings, scalars, ragged
batches and sequences, which it serves, are refused as well.
"""

import re
from collections.abc import Mapping
from typing import Any

import onnxruntime as ort

Config = Mapping[str, Any]

# config.pbtxt's data types and ONNX Runtime's names of them
ONNX_TYPES = {
    "TYPE_BOOL": "tensor(bool)",
    "TYPE_UINT8": "tensor(uint8)",
    "TYPE_UINT16": "tensor(uint16)",
    "TYPE_UINT32": "tensor(uint32)",
    "TYPE_UINT64": "tensor(uint64)",
    "TYPE_INT8": "tensor(int8)",
    "TYPE_INT16": "tensor(int16)",
    "TYPE_INT32": "tensor(int32)",
    "TYPE_INT64": "tensor(int64)",
    "TYPE_FP16": "tensor(float16)",
    "TYPE_FP32": "tensor(float)",
    "TYPE_FP64": "tensor(double)",
}
CONFIG_TYPES = {onnx_type: config_type for config_type, onnx_type in ONNX_TYPES.items()}

# As the native backend reads optimization.graph.level; every other level is 0, which enables all.
GRAPH_LEVELS = {
    -1: ort.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    1: ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    2: ort.GraphOptimizationLevel.ORT_DISABLE_ALL,
}
BOOLEANS = {"true": True, "on": True, "1": True, "false": False, "off": False, "0": False}
UNSUPPORTED = ("sequence_batching", "batch_input", "batch_output", "model_operations")


class ModelRefused(ValueError):
    """The model cannot be served as configured; the message names what config.pbtxt says and what the model has."""


def session_options(config: Config) -> ort.SessionOptions:
    """The session options that `config` asks for; raises ModelRefused for a value the native backend refuses."""
    options = ort.SessionOptions()
    level = config.get("optimization", {}).get("graph", {}).get("level", 0)
    options.graph_optimization_level = GRAPH_LEVELS.get(int(level), ort.GraphOptimizationLevel.ORT_ENABLE_ALL)
    mode = _integer(config, "execution_mode")
    if mode not in (0, 1):
        raise ModelRefused(f"parameter 'execution_mode': expected 0 or 1, found {mode}")
    options.execution_mode = ort.ExecutionMode.ORT_PARALLEL if mode else ort.ExecutionMode.ORT_SEQUENTIAL
    # 0 and below leave the number of threads to ONNX Runtime
    options.intra_op_num_threads = max(0, _integer(config, "intra_op_thread_count"))
    options.inter_op_num_threads = max(0, _integer(config, "inter_op_thread_count"))
    options.enable_cpu_mem_arena = _boolean(config, "enable_mem_arena", default=True)
    options.enable_mem_pattern = _boolean(config, "enable_mem_pattern", default=True)
    # Each instance is a process of its own here, so there is no session to share; the value must still be valid.
    _boolean(config, "share_session_between_instances", default=False)
    return options


def _integer(config: Config, key: str) -> int:
    """A parameter read as C++'s std::stoi reads it: leading blanks and anything after the digits are ignored."""
    text = config.get("parameters", {}).get(key, {}).get("string_value", "0")
    number = re.match(r"\s*[+-]?\d+", text)
    if number is None:
        raise ModelRefused(f"parameter '{key}': expected an integer, found '{text}'")
    return int(number[0])


def _boolean(config: Config, key: str, default: bool) -> bool:
    text = config.get("parameters", {}).get(key, {}).get("string_value", str(default))
    if text.lower() not in BOOLEANS:
        raise ModelRefused(f"parameter '{key}': expected true or false, found '{text}'")
    return BOOLEANS[text.lower()]


def check_features(config: Config) -> None:
    """Raise ModelRefused where `config` asks for what only the native backend can do."""
    for feature in UNSUPPORTED:
        if config.get(feature):
            raise ModelRefused(f"config.pbtxt asks for {feature}, which this server's backend does not have")
    accelerators = config.get("optimization", {}).get("execution_accelerators", {})
    for accelerator in accelerators.get("cpu_execution_accelerator", []):
        raise ModelRefused(f"unknown execution accelerator '{accelerator['name']}' is requested")


def check_tensors(config: Config, session: ort.InferenceSession) -> None:
    """Raise ModelRefused where the inputs and outputs of `config` are not those of the model."""
    inputs = {argument.name: argument for argument in session.get_inputs()}
    outputs = {argument.name: argument for argument in session.get_outputs()}
    required = [entry["name"] for entry in config["input"] if not entry.get("optional")]
    if len(required) != len(inputs):
        raise ModelRefused(
            f"config.pbtxt has {len(required)} inputs ({_listed(required)}),"
            f" the model has {len(inputs)} ({_listed(inputs)})"
        )
    # An initializer that may be overridden is not counted as an input, but a request may set it.
    inputs |= {argument.name: argument for argument in session.get_overridable_initializers()}
    batched = config["max_batch_size"] > 0
    for entry in config["input"]:
        if entry.get("allow_ragged_batch") or (entry.get("optional") and batched):
            raise ModelRefused(f"input '{entry['name']}' is ragged, or optional in a batch: not supported")
        _check_tensor("input", entry, inputs, batched)
    for entry in config["output"]:
        _check_tensor("output", entry, outputs, batched)


def _check_tensor(kind: str, entry: Config, provided: Mapping[str, ort.NodeArg], batched: bool) -> None:
    """Name, data type, batch dimension and shape of one input or output, in that order."""
    name = entry["name"]
    if name not in provided:
        raise ModelRefused(f"config.pbtxt has {kind} '{name}', the model has {_listed(provided)}")
    found = provided[name]
    declared_type = entry["data_type"]
    if ONNX_TYPES.get(declared_type) != found.type:
        found_type = CONFIG_TYPES.get(found.type, found.type)
        raise ModelRefused(f"{kind} '{name}': config.pbtxt says {declared_type}, the model has {found_type}")
    shape = [size if isinstance(size, int) else -1 for size in found.shape]
    declared = [int(size) for size in entry.get("reshape", {"shape": entry["dims"]}).get("shape", [])]
    if batched:
        declared.insert(0, -1)
        if shape[:1] != [-1]:
            raise ModelRefused(
                f"{kind} '{name}': max_batch_size above 0 needs a dynamic first dimension, the model has {shape}"
            )
    # Whatever the model leaves open an input may fix; an output must say exactly what comes.
    accepted = [want if have == -1 and kind == "input" else have for have, want in zip(shape, declared, strict=False)]
    if len(shape) != len(declared) or accepted != declared:
        batch = " (with the batch dimension)" if batched else ""
        raise ModelRefused(f"{kind} '{name}': config.pbtxt says shape {declared}{batch}, the model has {shape}")


def _listed(names: Any) -> str:
    return ", ".join(f"'{name}'" for name in sorted(names)) or "none"
