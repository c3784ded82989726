"""Runs a TensorRT engine through an execution context, as a server does.

In: an engine, the profile for each batch size, and a CUDA stream other than the default. Out: a function of images on
the device; it allocates memory once per batch size.
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
from export.engines.gpu import require
from export.engines.tensorrt_engine import EngineOptions, build, load, prepare
from models.networks.config import INPUT_NAME, OUTPUT_NAME, ModelConfig

if TYPE_CHECKING:
    import torch

Call = Callable[[Any], Any]

TIMINGS: list[bytes] = []
"""TensorRT's timing cache after the last engine."""


def in_tensorrt(data: bytes, candidate: Candidate, sizes: Sizes, graph: bool) -> Classify:
    """A profile for each of `sizes`. Raises Unavailable without the library or the device, EngineError."""
    require()
    options = EngineOptions(candidate.precision, opt_batch=1, max_batch=max(sizes), fixed=sizes)
    return execution(engine_of(data, candidate.config, options), sizes.index, graph)


@cache
def engine_of(data: bytes, config: ModelConfig, options: EngineOptions) -> bytes:
    """Candidates with one file share its engine; engines share their kernels' timings."""
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
    """Raises EngineError."""
    import torch

    with load(plan) as engine:
        return Execution(engine, profile_of, torch.cuda.current_stream(), graph)


class Execution:
    """uint8 images (B, C, H, W) -> float32 logits (B, classes), both on the device.

    Returns before the device is done; the next call overwrites the logits. With `graph` each batch size becomes a CUDA
    graph, or `fallback` says why not. Raises RuntimeError if TensorRT refuses.
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
        enqueue(images)  # the first call allocates, which a capture forbids
        try:
            return captured(enqueue, images, self.stream)
        except RuntimeError as reason:
            self.fallback = f"no CUDA graph for {len(images)} images: {one_line(reason)}"
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
    """`enqueue` as a CUDA graph. Raises RuntimeError."""
    import torch

    static, graph = images.clone(), torch.cuda.CUDAGraph()
    stream.synchronize()
    with torch.cuda.stream(stream):
        graph.capture_begin(capture_error_mode="thread_local")  # other threads may go on
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
    if not accepted:
        raise RuntimeError(f"TensorRT: expected it to take {what}, found a refusal (its own message stands above)")
