"""A Python backend in place of Triton's native backend `onnxruntime`.

In: a model's configuration and ONNX file. Out: an ONNX Runtime session with the native backend's options, or
ModelRefused.
"""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import onnxruntime as ort
from onnxruntime.capi import onnxruntime_pybind11_state

from serving.backends.batching import Array, RunFailed
from serving.backends.config_check import Config, ModelRefused, Tensor, parameter
from serving.backends.engine_backend import PythonBackend, in_utf8

# ONNX Runtime's errors have no common base class.
ORT_ERRORS: tuple[type[Exception], ...] = tuple(
    kind for kind in vars(onnxruntime_pybind11_state).values() if isinstance(kind, type) and issubclass(kind, Exception)
)

DATA_TYPES = {
    "tensor(bool)": "TYPE_BOOL",
    "tensor(uint8)": "TYPE_UINT8",
    "tensor(uint16)": "TYPE_UINT16",
    "tensor(uint32)": "TYPE_UINT32",
    "tensor(uint64)": "TYPE_UINT64",
    "tensor(int8)": "TYPE_INT8",
    "tensor(int16)": "TYPE_INT16",
    "tensor(int32)": "TYPE_INT32",
    "tensor(int64)": "TYPE_INT64",
    "tensor(float16)": "TYPE_FP16",
    "tensor(float)": "TYPE_FP32",
    "tensor(double)": "TYPE_FP64",
}

# The native backend's reading of optimization.graph.level; other levels enable all optimisations.
GRAPH_LEVELS = {
    -1: ort.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    1: ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    2: ort.GraphOptimizationLevel.ORT_DISABLE_ALL,
}
CUDA = "CUDAExecutionProvider"
# After so long without a run the server is not under load, where the next request waits already.
IDLE_S = 3e-4
BOOLEANS = {"true": True, "on": True, "1": True, "false": False, "off": False, "0": False}


class OnnxRuntime:
    """An engine that runs ONNX Runtime.

    inner_batch: rows of one run, so that activations stay in the processor's cache; larger batches take several runs.
                 0: no limit.
    lone:        a session with spinning threads, for batches of at most `lone_rows` rows after IDLE_S without a run:
                 spinning answers a lone request sooner, but takes the cores from other work under load.
    """

    def __init__(
        self,
        session: ort.InferenceSession,
        inner_batch: int = 0,
        lone: ort.InferenceSession | None = None,
        lone_rows: int = 0,
    ) -> None:
        self.session, self.inner_batch, self.lone, self.lone_rows = session, inner_batch, lone or session, lone_rows
        self._last_run_s = 0.0  # when the last run ended
        # A request may also set initialisers that are graph inputs: optional inputs.
        self.inputs = _tensors(session.get_overridable_initializers(), optional=True) | _tensors(session.get_inputs())
        self.outputs = _tensors(session.get_outputs())

    def run(self, names: Sequence[str], feeds: Mapping[str, Array]) -> list[Array]:
        try:
            return self._run(names, feeds)
        except ORT_ERRORS as error:
            raise RunFailed(str(error)) from error
        finally:
            self._last_run_s = perf_counter()

    def _run(self, names: Sequence[str], feeds: Mapping[str, Array]) -> list[Array]:
        rows = max(map(len, feeds.values())) if self.inner_batch or self.lone_rows else 0
        if rows <= self.inner_batch or not self.inner_batch:
            is_lone = rows <= self.lone_rows and perf_counter() - self._last_run_s > IDLE_S
            arrays: list[Array] = (self.lone if is_lone else self.session).run(names, feeds)
            return arrays
        starts = range(0, rows, self.inner_batch)
        inner_feeds = ({name: value[i : i + self.inner_batch] for name, value in feeds.items()} for i in starts)
        runs = [self.session.run(names, inner) for inner in inner_feeds]
        return [np.concatenate(parts) for parts in zip(*runs, strict=True)]


class TritonPythonModel(PythonBackend):
    default_file = "model.onnx"

    def load(self, path: Path, config: Config, args: Mapping[str, str]) -> OnnxRuntime:
        kind = args["model_instance_kind"]
        inner_batch, lone_rows = row_count(config, "inner_batch", kind), row_count(config, "lone_rows", kind)
        provider_list = providers(config, kind, args["model_instance_device_id"])
        blocking, spinning = session_options(config), session_options(config, spins=True)
        lone_rows = lone_rows if spinning.intra_op_num_threads != 1 else 0  # a single thread waits for no other
        try:
            file = in_utf8(path / "model.onnx" if path.is_dir() else path)
            # No fallback: after an error a GPU's session would continue on the CPU without a message.
            session = ort.InferenceSession(file, blocking, provider_list, enable_fallback=0)
            lone = ort.InferenceSession(file, spinning, provider_list, enable_fallback=0) if lone_rows else None
        except ORT_ERRORS as error:
            raise ModelRefused(f"ONNX Runtime cannot read the model: {error}") from error
        check_provider(session.get_providers(), kind)
        return OnnxRuntime(session, inner_batch, lone, lone_rows)


def providers(config: Config, kind: str, device: str) -> list[Any]:
    """The execution providers of a session, in order of preference. Raises ModelRefused for a GPU without CUDA."""
    if kind != "GPU":
        return ["CPUExecutionProvider"]
    if hasattr(ort, "preload_dlls"):  # from 1.21 on: the CUDA libraries of pip's packages
        ort.preload_dlls()
    if CUDA not in ort.get_available_providers():
        raise ModelRefused(
            f"instance_group: expected an ONNX Runtime with CUDA for KIND_GPU, found {ort.__version__} for CPUs: "
            "pip install onnxruntime-gpu, or publish for KIND_CPU"
        )
    return [(CUDA, {"device_id": device, "use_tf32": cuda_parameters(config).get("use_tf32", "1")})]


def check_provider(used: Sequence[str], kind: str) -> None:
    """Raises ModelRefused unless the session uses the GPU: without CUDA's libraries ONNX Runtime takes the CPU."""
    if kind == "GPU" and CUDA not in used:
        raise ModelRefused(f"instance_group: expected {CUDA} for KIND_GPU, found {', '.join(used)}: see the log above")


def cuda_parameters(config: Config) -> dict[str, str]:
    """The parameters of the execution accelerator `cuda`, as the native backend reads them."""
    accelerators = config.get("optimization", {}).get("execution_accelerators", {})
    for accelerator in accelerators.get("gpu_execution_accelerator", []):
        if accelerator["name"] == "cuda":
            return dict(accelerator.get("parameters", {}))
    return {}


def row_count(config: Config, key: str, kind: str) -> int:
    """The parameter `key` in rows; 0 on a GPU and for a model without batches. Raises ModelRefused for a bad value."""
    rows = _integer(config, key)
    if rows < 0:
        raise ModelRefused(f"parameter '{key}': expected at least 0, found {rows}")
    return rows if config["max_batch_size"] > 0 and kind != "GPU" else 0


def session_options(config: Config, spins: bool = False) -> ort.SessionOptions:
    """The native backend's session options, read from `config`. Raises ModelRefused.

    spins: threads wait busily, also for a while after a run, and so take the cores from Triton and its clients.
    """
    options = ort.SessionOptions()
    options.add_session_config_entry("session.intra_op.allow_spinning", str(int(spins)))
    level = config.get("optimization", {}).get("graph", {}).get("level", 0)
    options.graph_optimization_level = GRAPH_LEVELS.get(int(level), ort.GraphOptimizationLevel.ORT_ENABLE_ALL)
    mode = _integer(config, "execution_mode")
    if mode not in (0, 1):
        raise ModelRefused(f"parameter 'execution_mode': expected 0 or 1, found {mode}")
    options.execution_mode = ort.ExecutionMode.ORT_PARALLEL if mode else ort.ExecutionMode.ORT_SEQUENTIAL
    options.intra_op_num_threads = max(0, _integer(config, "intra_op_thread_count")) or _default_threads()
    options.inter_op_num_threads = max(0, _integer(config, "inter_op_thread_count"))
    options.enable_cpu_mem_arena = _boolean(config, "enable_mem_arena", default=True)
    options.enable_mem_pattern = _boolean(config, "enable_mem_pattern", default=True)
    # Checked but without effect: each instance is a process, and processes cannot share a session.
    _boolean(config, "share_session_between_instances", default=False)
    return options


def _default_threads() -> int:
    """The number of cores if this process may use only some of them, else 0, by which ONNX Runtime chooses."""
    cores = len(os.sched_getaffinity(0))
    return cores if cores < (os.cpu_count() or cores) else 0


def _integer(config: Config, key: str) -> int:
    """Reads an integer as the native backend's std::stoi does: ignores leading blanks and text after the digits."""
    text = parameter(config, key)
    number = re.match(r"\s*[+-]?\d+", "0" if text is None else text)
    if number is None:
        raise ModelRefused(f"parameter '{key}': expected an integer, found '{text}'")
    return int(number[0])


def _boolean(config: Config, key: str, default: bool) -> bool:
    text = parameter(config, key)
    if text is None:
        return default
    if text.lower() not in BOOLEANS:
        raise ModelRefused(f"parameter '{key}': expected true or false, found '{text}'")
    return BOOLEANS[text.lower()]


def _tensors(arguments: Sequence[ort.NodeArg], optional: bool = False) -> dict[str, Tensor]:
    return {
        argument.name: Tensor(
            DATA_TYPES.get(argument.type, argument.type),
            tuple(size if isinstance(size, int) else -1 for size in argument.shape),
            optional,
        )
        for argument in arguments
    }
