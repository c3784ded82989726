"""Runs an ONNX file in ONNX Runtime, on the CPU or on CUDA."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from benchmarks.measure.candidate import Candidate, Classify
from export.errors import Unavailable
from models.networks.config import INPUT_NAME, OUTPUT_NAME

FATAL = 4  # severity of a logger: errors reach the caller as exceptions, with the same text


@cache
def _share_memory() -> None:
    """Registers a CPU arena for all sessions: a session's own arena keeps 2 to 3 GB at batch 5000."""
    allocator, memory = onnxruntime.OrtAllocatorType.ORT_ARENA_ALLOCATOR, onnxruntime.OrtMemType.DEFAULT
    onnxruntime.create_and_register_allocator(onnxruntime.OrtMemoryInfo("Cpu", allocator, 0, memory), None)


def on_cpu(data: bytes, candidate: Candidate) -> Classify:
    _share_memory()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = candidate.threads
    options.enable_mem_pattern = False  # patterns keep another arena per shape, and calls get no faster
    options.add_session_config_entry("session.use_env_allocators", "1")
    session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    return lambda images: session.run([OUTPUT_NAME], {INPUT_NAME: images})[0]


def on_cuda(data: bytes, candidate: Candidate) -> Classify:
    """Raises Unavailable without the library or the device."""
    session = cuda_session(data, cuda_options(candidate))
    return _replayed(session) if candidate.runtime.graph else _bound_to_cuda(session)


def cuda_session(model: bytes | Path, options: dict[str, str]) -> Any:
    """A session on CUDA, which logs nothing. `options`: of the provider. Raises Unavailable as `on_cuda`."""
    provider = "CUDAExecutionProvider"
    if provider not in onnxruntime.get_available_providers():
        raise Unavailable(f"ONNX Runtime's {provider} is missing (install onnxruntime-gpu)")
    onnxruntime.preload_dlls()  # from CUDA's wheels, unless PyTorch has loaded its own
    onnxruntime.set_default_logger_severity(FATAL)
    of_session = onnxruntime.SessionOptions()
    of_session.log_severity_level = FATAL
    session = onnxruntime.InferenceSession(model, of_session, [(provider, options)])
    if session.get_providers()[0] != provider:  # without its libraries ONNX Runtime silently uses another
        raise Unavailable(f"ONNX Runtime's {provider} is installed, but did not start (see its message)")
    return session


def cuda_options(candidate: Candidate) -> dict[str, str]:
    """Options of the provider.

    `use_tf32` is off for float32, whose answers TF32 would change. It is on for float16, whose convolutions run on the
    tensor cores only with it. cuDNN's own choice of a convolution beats an exhaustive search, and channels first beat
    `prefer_nhwc`: the CNN took 3.7 ms instead of 7.4 for 5,000 images in float32, 2.6 instead of 3.1 in float16 (H200).
    """
    import torch

    return {
        "use_tf32": "0" if candidate.precision == "fp32" else "1",
        "cudnn_conv_algo_search": "HEURISTIC",
        "enable_cuda_graph": str(int(candidate.runtime.graph)),
        "user_compute_stream": str(torch.cuda.current_stream().cuda_stream),
    }


def _bound_to_cuda(session: Any) -> Classify:
    import torch

    classes = session.get_outputs()[0].shape[1]
    options = _run_options()

    def run(images: Any) -> Any:
        logits = torch.empty(len(images), classes, device=images.device)
        session.run_with_iobinding(_binding(session, images, logits), options)
        return logits

    return run


def _replayed(session: Any) -> Classify:
    """Calls by a CUDA graph for each batch size, on fixed tensors: the next call overwrites the logits."""
    import torch

    classes = session.get_outputs()[0].shape[1]
    prepared: dict[int, tuple[Any, Any, Any, Any]] = {}  # batch size -> images, logits, binding, options

    def run(images: Any) -> Any:
        count = len(images)
        if count not in prepared:
            static, logits = images.clone(), torch.empty(count, classes, device=images.device)
            prepared[count] = (static, logits, _binding(session, static, logits), _run_options(gpu_graph_id=str(count)))
        static, logits, binding, options = prepared[count]
        static.copy_(images)
        session.run_with_iobinding(binding, options)
        return logits

    return run


def _binding(session: Any, images: Any, logits: Any) -> Any:
    binding = session.io_binding()
    binding.bind_input(INPUT_NAME, "cuda", 0, np.uint8, tuple(images.shape), images.data_ptr())
    binding.bind_output(OUTPUT_NAME, "cuda", 0, np.float32, tuple(logits.shape), logits.data_ptr())
    return binding


def _run_options(**entries: str) -> Any:
    options = onnxruntime.RunOptions()
    for key, value in {"disable_synchronize_execution_providers": "1", **entries}.items():  # the caller waits
        options.add_run_config_entry(key, value)
    return options
