from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import onnx
import onnxruntime

from benchmarks.contest.runtimes import Setup
from benchmarks.contest.tensorrt_execution import Execution
from export.engines.gpu import require
from export.engines.openvino_engine import openvino_classifier
from export.engines.tensorrt_engine import EngineOptions, build, load
from export.engines.tensorrt_support import prepare
from export.errors import Unavailable
from models.config import INPUT_NAME, OUTPUT_NAME, ModelConfig

Run = Callable[[Any], Any]


def in_onnx_engine(data: bytes, setup: Setup) -> Run:
    """Raises Unavailable without the library or the device, EngineError without an engine."""
    if setup.engine == "tensorrt":
        return _in_tensorrt(data, setup)
    if setup.engine == "openvino":
        return _in_openvino(data, setup)
    return _in_onnxruntime(data, setup)


@cache
def _share_memory() -> None:
    """A single CPU arena for all sessions: separate arenas keep 2 to 3 GB each at batch 5000."""
    kind, use = onnxruntime.OrtAllocatorType.ORT_ARENA_ALLOCATOR, onnxruntime.OrtMemType.DEFAULT
    onnxruntime.create_and_register_allocator(onnxruntime.OrtMemoryInfo("Cpu", kind, 0, use), None)


def _in_onnxruntime(data: bytes, setup: Setup) -> Run:
    cuda = ("CUDAExecutionProvider", cuda_options(setup) if setup.device == "cuda" else {})
    provider: Any = cuda if setup.device == "cuda" else "CPUExecutionProvider"
    options = onnxruntime.SessionOptions()
    if setup.device == "cpu":
        _share_memory()
        options.intra_op_num_threads = setup.threads
        options.enable_mem_pattern = False  # a second arena per shape, and no faster
        options.add_session_config_entry("session.use_env_allocators", "1")
    elif cuda[0] not in onnxruntime.get_available_providers():
        raise Unavailable("ONNX Runtime's CUDAExecutionProvider is missing (install onnxruntime-gpu)")
    else:
        onnxruntime.preload_dlls()  # from CUDA's wheels, unless PyTorch has loaded its own
    session = onnxruntime.InferenceSession(data, options, providers=[provider])
    if setup.device == "cpu":
        return lambda images: session.run([OUTPUT_NAME], {INPUT_NAME: images})[0]
    if session.get_providers()[0] != cuda[0]:  # without CUDA's libraries ONNX Runtime silently uses the CPU
        raise Unavailable("ONNX Runtime's CUDAExecutionProvider is installed, but did not start (see its message)")
    return _bound_to_cuda(session)


def cuda_options(setup: Setup) -> dict[str, str]:
    """float32 uses TF32 only by request. float16 always needs it: else convolutions stay off the tensor cores, which
    also want channels last.
    """
    import torch

    convolves = setup.config is not None and not setup.config.is_transformer
    return {
        "use_tf32": "0" if setup.precision == "fp32" else "1",
        "prefer_nhwc": "1" if convolves else "0",
        "user_compute_stream": str(torch.cuda.current_stream().cuda_stream),
    }


def _bound_to_cuda(session: Any) -> Run:
    import torch

    classes = session.get_outputs()[0].shape[1]
    binding, options = session.io_binding(), onnxruntime.RunOptions()
    options.add_run_config_entry("disable_synchronize_execution_providers", "1")  # the caller waits

    def run(images: Any) -> Any:
        logits = torch.empty(len(images), classes, device=images.device)
        binding.bind_input(INPUT_NAME, "cuda", 0, np.uint8, tuple(images.shape), images.data_ptr())
        binding.bind_output(OUTPUT_NAME, "cuda", 0, np.float32, tuple(logits.shape), logits.data_ptr())
        session.run_with_iobinding(binding, options)
        return logits

    return run


def _in_openvino(data: bytes, setup: Setup) -> Run:
    return openvino_classifier(data, setup.precision == "bf16", setup.threads)


def _in_tensorrt(data: bytes, setup: Setup) -> Run:
    require()
    precision: Any = setup.precision
    options = EngineOptions(precision, opt_batch=1, max_batch=max(setup.batches), fixed=setup.batches)
    plan = build(prepare(onnx.load_from_string(data)), setup.config or ModelConfig(), options)
    return execution(plan, setup.batches.index, setup.graph)


def execution(plan: bytes, profile_of: Callable[[int], int], graph: bool = False) -> Execution:
    """Raises EngineError."""
    import torch

    with load(plan) as engine:
        return Execution(engine, profile_of, torch.cuda.current_stream(), graph)
