"""An ONNX file in ONNX Runtime, OpenVINO or TensorRT."""

from __future__ import annotations

import atexit
from collections.abc import Callable
from contextlib import ExitStack
from functools import cache
from typing import Any

import numpy as np
import onnx
import onnxruntime

from benchmarks.contest.runtimes import Setup
from export.engines.gpu import require
from export.engines.openvino_engine import openvino_classifier
from export.engines.tensorrt_engine import EngineError, EngineOptions, build, load
from export.engines.tensorrt_support import UnsupportedGraph, prepare
from export.errors import Unavailable
from models.config import INPUT_NAME, OUTPUT_NAME, ModelConfig

Run = Callable[[Any], Any]


def in_onnx_engine(data: bytes, setup: Setup) -> Run:
    """The file in its engine; raises Unavailable if a library or a device is missing."""
    if setup.engine == "tensorrt":
        return _in_tensorrt(data, setup)
    if setup.engine == "openvino":
        return _in_openvino(data, setup)
    return _in_onnxruntime(data, setup)


@cache
def _share_memory() -> None:
    """One CPU arena for all sessions; otherwise each session keeps 2 to 3 GB at batch 5000."""
    kind, use = onnxruntime.OrtAllocatorType.ORT_ARENA_ALLOCATOR, onnxruntime.OrtMemType.DEFAULT
    onnxruntime.create_and_register_allocator(onnxruntime.OrtMemoryInfo("Cpu", kind, 0, use), None)


def _in_onnxruntime(data: bytes, setup: Setup) -> Run:
    cuda = ("CUDAExecutionProvider", {"use_tf32": "1" if setup.precision == "tf32" else "0"})
    provider: Any = cuda if setup.device == "cuda" else "CPUExecutionProvider"
    options = onnxruntime.SessionOptions()
    if setup.device == "cpu":
        _share_memory()
        options.intra_op_num_threads = setup.threads
        options.enable_mem_pattern = False  # a second arena per shape, and no faster
        options.add_session_config_entry("session.use_env_allocators", "1")
    elif cuda[0] not in onnxruntime.get_available_providers():
        raise Unavailable("ONNX Runtime's CUDAExecutionProvider is missing (install onnxruntime-gpu)")
    session = onnxruntime.InferenceSession(data, options, providers=[provider])
    if setup.device == "cpu":
        return lambda images: session.run([OUTPUT_NAME], {INPUT_NAME: images})[0]
    if session.get_providers()[0] != cuda[0]:  # without CUDA's libraries ONNX Runtime silently uses the CPU
        raise Unavailable("ONNX Runtime's CUDAExecutionProvider is installed, but did not start (see its message)")
    return _bound_to_cuda(session)


def _bound_to_cuda(session: Any) -> Run:
    import torch

    classes = session.get_outputs()[0].shape[1]
    binding = session.io_binding()

    def run(images: Any) -> Any:
        logits = torch.empty(len(images), classes, device=images.device)
        binding.bind_input(INPUT_NAME, "cuda", 0, np.uint8, tuple(images.shape), images.data_ptr())
        binding.bind_output(OUTPUT_NAME, "cuda", 0, np.float32, tuple(logits.shape), logits.data_ptr())
        session.run_with_iobinding(binding)
        return logits

    return run


def _in_openvino(data: bytes, setup: Setup) -> Run:
    return openvino_classifier(data, setup.precision == "bf16", setup.threads)


def _in_tensorrt(data: bytes, setup: Setup) -> Run:
    """An engine built on this GPU for up to `largest_batch` images, tuned for that size."""
    largest = setup.largest_batch
    options = EngineOptions("fp16" if setup.precision == "fp16" else "fp32", 1, largest, largest)
    stack = ExitStack()
    atexit.register(stack.close)  # engine and runner live as long as the process
    try:
        require()
        from polygraphy.backend.trt import TrtRunner

        plan = build(prepare(onnx.load_from_string(data)), setup.config or ModelConfig(), options)
        runner = stack.enter_context(TrtRunner(stack.enter_context(load(plan))))
    except (UnsupportedGraph, EngineError) as error:
        raise Unavailable(str(error)) from error
    return lambda images: runner.infer({INPUT_NAME: images}, copy_outputs_to_host=False)[OUTPUT_NAME]
