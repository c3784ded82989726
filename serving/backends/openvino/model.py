"""A Python backend in place of Triton's native backend `openvino`, on CPUs only.

In: a model's configuration and file. Out: a model compiled with the native backend's properties, or ModelRefused.
Source: triton-inference-server/openvino_backend, src/openvino.cc.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import triton_python_backend_utils as pb_utils

from serving.backends.batching import Array, RunFailed
from serving.backends.config_check import Config, ModelRefused, Tensor, parameter
from serving.backends.engine_backend import PythonBackend, in_utf8

if TYPE_CHECKING:
    import openvino as ov

# Without f64: the native backend does not know TYPE_FP64.
DATA_TYPES = {
    "boolean": "TYPE_BOOL",
    "u8": "TYPE_UINT8",
    "u16": "TYPE_UINT16",
    "u32": "TYPE_UINT32",
    "u64": "TYPE_UINT64",
    "i8": "TYPE_INT8",
    "i16": "TYPE_INT16",
    "i32": "TYPE_INT32",
    "i64": "TYPE_INT64",
    "f16": "TYPE_FP16",
    "f32": "TYPE_FP32",
}
NUMBER = "[0-9]+"
# Parameters of config.pbtxt that become properties of the CPU -> pattern of their upper-case values.
PROPERTIES = {
    "INFERENCE_NUM_THREADS": NUMBER,
    "COMPILATION_NUM_THREADS": NUMBER,
    "NUM_STREAMS": f"AUTO|NUMA|{NUMBER}",
    "PERFORMANCE_HINT": "LATENCY|THROUGHPUT|CUMULATIVE_THROUGHPUT",
}


class OpenVino:
    """An engine that runs OpenVINO."""

    def __init__(self, compiled: ov.CompiledModel) -> None:
        self.inputs = {port.any_name: _tensor(port) for port in compiled.inputs}
        self.outputs = {port.any_name: _tensor(port) for port in compiled.outputs}
        self.request = compiled.create_infer_request()

    def run(self, names: Sequence[str], feeds: Mapping[str, Array]) -> list[Array]:
        try:
            values = self.request.infer(dict(feeds), share_inputs=True)
        except RuntimeError as error:
            raise RunFailed(_reason(error)) from error
        return [values[name] for name in names]


class TritonPythonModel(PythonBackend):
    default_file = "model.xml"

    def load(self, path: Path, config: Config, args: Mapping[str, str]) -> OpenVino:
        check_config(config, args["model_instance_kind"])
        try:
            core = _core()
            bfloat16 = "BF16" in core.get_property("CPU", "OPTIMIZATION_CAPABILITIES")
            core.set_property("CPU", cpu_properties(config, bfloat16))
            if wants_bfloat16(config) and not bfloat16:
                pb_utils.Logger.log_warn(f"{in_utf8(path)}: this CPU has no bfloat16, the model runs in float32")
            return OpenVino(core.compile_model(core.read_model(in_utf8(path)), "CPU"))
        except RuntimeError as error:
            raise ModelRefused(f"OpenVINO cannot load the model: {_reason(error)}") from error


def check_config(config: Config, kind: str) -> None:
    """Raises ModelRefused for settings that the native backend refuses or interprets differently."""
    if kind != "CPU":
        raise ModelRefused(f"instance_group: expected KIND_CPU, found KIND_{kind}")
    if config["max_batch_size"] > 0:
        raise ModelRefused(
            f"max_batch_size: expected 0 and dims that begin with -1, found {config['max_batch_size']}: "
            "Triton's OpenVINO backend would accept only so many rows"
        )
    if parameter(config, "CPU_EXTENSION_PATH"):
        raise ModelRefused("parameter 'CPU_EXTENSION_PATH': this server's backend loads no extensions")
    if (parameter(config, "RESHAPE_IO_LAYERS") or "").lower() == "yes":
        raise ModelRefused("parameter 'RESHAPE_IO_LAYERS': this server's backend does not reshape models")


def cpu_properties(config: Config, bfloat16: bool) -> dict[str, str]:
    """OpenVINO's properties. Raises ModelRefused.

    bfloat16: whether the CPU has bfloat16. There OpenVINO would compute in it by default; here only if HINT_BF16 asks.
    """
    properties = {"INFERENCE_PRECISION_HINT": "bf16" if wants_bfloat16(config) and bfloat16 else "f32"}
    for key, pattern in PROPERTIES.items():
        text = (parameter(config, key) or "").upper()
        if text and not re.fullmatch(pattern, text):
            expected = pattern.replace(NUMBER, "a non-negative number").replace("|", ", ")
            raise ModelRefused(f"parameter '{key}': expected {expected}, found '{parameter(config, key)}'")
        if text:
            properties[key] = text
    return properties


def wants_bfloat16(config: Config) -> bool:
    """Whether HINT_BF16 asks for bfloat16. Raises ModelRefused."""
    text = parameter(config, "HINT_BF16") or ""
    if text.upper() not in ("", "YES"):
        raise ModelRefused(f"parameter 'HINT_BF16': expected YES, found '{text}'")
    return bool(text)


def _core() -> ov.Core:
    """OpenVINO's core. The import is here, so that a missing package is a ModelRefused, which Triton shows."""
    sys.modules["openvino_telemetry"] = None  # type: ignore[assignment]  # stops OpenVINO's reports to Intel
    try:
        import openvino
    except ModuleNotFoundError as error:
        raise ModelRefused(f"OpenVINO is not installed in {sys.prefix}: pip install openvino") from error
    return openvino.Core()


def _tensor(port: ov.ConstOutput) -> Tensor:
    shape = port.partial_shape
    if shape.rank.is_dynamic or any(size.is_dynamic and size.max_length != -1 for size in shape):
        raise ModelRefused(f"'{port.any_name}': its shape {shape} has a range, which is not supported")
    name = port.element_type.get_type_name()
    return Tensor(DATA_TYPES.get(name, name), tuple(-1 if size.is_dynamic else size.get_length() for size in shape))


def _reason(error: RuntimeError) -> str:
    """The last line of OpenVINO's message; earlier lines name its source files."""
    return str(error).strip().rpartition("\n")[2]
