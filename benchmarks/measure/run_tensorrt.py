"""Runs an ONNX file as a TensorRT engine, through an execution context, as a server does.

In: an ONNX file, or a plan, which is a built engine. Out: a function of images on the device. It allocates memory at
the first call with a batch size.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx

from benchmarks.measure.candidate import Candidate, Classify, Sizes
from benchmarks.measure.progress import note, one_line
from common.plurals import counted
from export.engines.gpu import require
from export.engines.tensorrt_engine import EngineOptions, build, load, prepare
from models.networks.config import INPUT_NAME, OUTPUT_NAME, ModelConfig

if TYPE_CHECKING:
    import torch

Call = Callable[[Any], Any]

TIMINGS: list[bytes] = []
"""TensorRT's timing cache after the last engine; empty before the first."""


def in_tensorrt(data: bytes, candidate: Candidate, sizes: Sizes) -> Classify:
    """Builds an engine with a profile for each batch size in `sizes`.

    Raises Unavailable without the library or the device, EngineError.
    """
    require()
    options = EngineOptions(candidate.precision, opt_batch=1, max_batch=max(sizes), fixed=sizes)
    return execution(engine_of(data, candidate.config, options), sizes.index, candidate.runtime.graph)


@cache
def engine_of(data: bytes, config: ModelConfig, options: EngineOptions) -> bytes:
    """The plan of an ONNX file, cached for candidates with the same file. Builds share the timings of kernels."""
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        timings = Path(folder, "timings")
        if TIMINGS:
            timings.write_bytes(TIMINGS[-1])
        plan = build(prepare(onnx.load_from_string(data)), config, replace(options, timing_cache=timings))
        TIMINGS[:] = [timings.read_bytes()] if timings.exists() else []
    note(f"TensorRT: an engine of {config.model}, {options.precision}, took {time.perf_counter() - start:.0f} s")
    return plan


def execution(plan: bytes, profile_of: Callable[[int], int], graph: bool = False) -> Execution:
    """The plan on the current CUDA stream. `profile_of`: batch size -> index of its profile. Raises EngineError."""
    import torch

    with load(plan) as engine:
        return Execution(engine, profile_of, torch.cuda.current_stream(), graph)


class Execution:
    """uint8 images (B, C, H, W) -> float32 logits (B, classes), both on the device.

    A call returns before the device has finished, and overwrites the logits of the last call. With `graph` each batch
    size becomes a CUDA graph; if that fails, `fallback` says why. `stream`: not the default stream, which forbids a
    capture. Raises RuntimeError if TensorRT refuses.
    """

    def __init__(
        self, engine: Any, profile_of: Callable[[int], int], stream: torch.cuda.Stream, graph: bool = False
    ) -> None:
        self.engine, self.profile_of, self.stream, self.graph = engine, profile_of, stream, graph
        self.prepared: dict[int, Call] = {}
        self.fallback: str | None = None

    def __call__(self, images: Any) -> Any:
        if len(images) not in self.prepared:
            self.prepared[len(images)] = self._prepare(images)
        return self.prepared[len(images)](images)

    def _prepare(self, images: Any) -> Call:
        enqueue = self._enqueuer(images)
        if not self.graph:
            return enqueue
        enqueue(images)  # the first call allocates memory, which a capture forbids
        try:
            return captured(enqueue, images, self.stream)
        except RuntimeError as reason:
            self.fallback = f"no CUDA graph for {counted(len(images), 'image')}: {one_line(reason)}"
            return enqueue

    def _enqueuer(self, images: Any) -> Call:
        import torch

        context = self.engine.create_execution_context()
        if context is None:
            raise RuntimeError("TensorRT: expected memory for an execution context, found none")
        profile = self.profile_of(len(images))
        _demand(context.set_optimization_profile_async(profile, self.stream.cuda_stream), f"profile {profile}")
        _demand(context.set_input_shape(INPUT_NAME, tuple(images.shape)), f"images {tuple(images.shape)}")
        classes = tuple(self.engine.get_tensor_shape(OUTPUT_NAME))[-1]
        logits = torch.empty(len(images), classes, device=images.device)
        _demand(context.set_tensor_address(OUTPUT_NAME, logits.data_ptr()), "an address for the logits")

        def enqueue(images: Any) -> Any:
            context.set_tensor_address(INPUT_NAME, images.data_ptr())
            _demand(context.execute_async_v3(self.stream.cuda_stream), "to enqueue the engine")
            return logits

        return enqueue


def captured(enqueue: Call, images: Any, stream: torch.cuda.Stream) -> Call:
    """Captures `enqueue` as a CUDA graph, for images of this shape. Raises RuntimeError."""
    import torch

    static, graph = images.clone(), torch.cuda.CUDAGraph()
    stream.synchronize()
    with torch.cuda.stream(stream):
        graph.capture_begin(capture_error_mode="thread_local")  # other threads may use the device
        try:
            logits = enqueue(static)
        finally:
            graph.capture_end()

    def replay(images: Any) -> Any:
        static.copy_(images)
        graph.replay()
        return logits

    return replay


def _demand(accepted: bool, what: str) -> None:
    """Raises RuntimeError unless TensorRT has accepted."""
    if not accepted:
        raise RuntimeError(f"TensorRT: expected it to take {what}, found a refusal (its own message stands above)")
