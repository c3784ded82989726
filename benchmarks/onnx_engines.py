"""An ONNX file in the engines that read one: ONNX Runtime, OpenVINO, TensorRT.

In: the bytes of the file. Out: as of `benchmarks.torch_engines`, a function from images to logits in the memory of the
device, done when it returns.
"""

from __future__ import annotations

import atexit
from contextlib import ExitStack
from functools import cache
from typing import Any

import numpy as np
import onnx
import onnxruntime

from benchmarks.runtimes import Device, Precision
from benchmarks.torch_engines import Run
from benchmarks.unavailable import Unavailable
from export.engine import EngineError, EngineOptions, build, load
from export.gpu import MissingError, require
from export.openvino_engine import EngineMissing, openvino_classifier
from export.tensorrt_support import UnsupportedGraph, prepare
from models.config import INPUT_NAME, OUTPUT_NAME, ModelConfig


@cache
def _share_memory() -> None:
    """One CPU arena for all sessions: at batch 5000 each of them holds 2 to 3 GB of its own otherwise."""
    kind, use = onnxruntime.OrtAllocatorType.ORT_ARENA_ALLOCATOR, onnxruntime.OrtMemType.DEFAULT
    onnxruntime.create_and_register_allocator(onnxruntime.OrtMemoryInfo("Cpu", kind, 0, use), None)


def in_onnxruntime(data: bytes, device: Device, threads: int, precision: Precision) -> Run:
    """The file in ONNX Runtime, TF32 only where it is asked for."""
    cuda = ("CUDAExecutionProvider", {"use_tf32": "1" if precision == "tf32" else "0"})
    provider: Any = cuda if device == "cuda" else "CPUExecutionProvider"
    options = onnxruntime.SessionOptions()
    if device == "cpu":
        _share_memory()
        options.intra_op_num_threads = threads
        options.enable_mem_pattern = False  # would keep a second arena for each shape, and is no faster
        options.add_session_config_entry("session.use_env_allocators", "1")
    elif cuda[0] not in onnxruntime.get_available_providers():
        raise Unavailable("ONNX Runtime's CUDAExecutionProvider is missing (install onnxruntime-gpu)")
    session = onnxruntime.InferenceSession(data, options, providers=[provider])
    if device == "cpu":
        return lambda images: session.run([OUTPUT_NAME], {INPUT_NAME: images})[0]
    if session.get_providers()[0] != cuda[0]:  # it goes on with the CPU where a library of CUDA is missing
        raise Unavailable("ONNX Runtime's CUDAExecutionProvider is there, but did not start (see its message)")
    return _bound_to_cuda(session)


def _bound_to_cuda(session: Any) -> Run:
    """Reads images and writes logits where they lie, in tensors of the device."""
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


def in_openvino(data: bytes, threads: int, precision: Precision) -> Run:
    """The file in OpenVINO on the CPU."""
    try:
        return openvino_classifier(data, precision == "bf16", threads)
    except EngineMissing as missing:
        raise Unavailable(str(missing)) from missing


def in_tensorrt(data: bytes, config: ModelConfig, precision: Precision, batch: int) -> Run:
    """The engine that TensorRT builds on this GPU for up to `batch` images, at which it is best."""
    options = EngineOptions("fp16" if precision == "fp16" else "fp32", 1, batch, batch)
    stack = ExitStack()
    atexit.register(stack.close)  # engine and runner live as long as the process
    try:
        require()
        from polygraphy.backend.trt import TrtRunner

        plan = build(prepare(onnx.load_from_string(data)), config, options)
        runner = stack.enter_context(TrtRunner(stack.enter_context(load(plan))))
    except (MissingError, UnsupportedGraph, EngineError) as error:
        raise Unavailable(str(error)) from error
    return lambda images: runner.infer({INPUT_NAME: images}, copy_outputs_to_host=False)[OUTPUT_NAME]
