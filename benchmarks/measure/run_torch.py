"""Runs a PyTorch network eager, compiled or as CUDA graphs."""

from __future__ import annotations

import copy
import importlib
import importlib.util
import os
import shutil
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from benchmarks.measure.candidate import Candidate
from export.checkpoint_to_onnx import Uint8Network
from export.errors import Unavailable

SHAPES = 64  # the most compiled forms: each batch size, model and precision has a form
CAPTURE_WARM_UPS = 3  # calls on a side stream before a capture, as torch.cuda.graph demands

Forward = Callable[[Tensor], Tensor]


def in_torch(
    network: Uint8Network, candidate: Candidate, make: Callable[[Uint8Network], Forward]
) -> Callable[[Any], Any]:
    """A function from images to float32 logits. `make` turns a copy of `network` on the device into its forward."""
    network = copy.deepcopy(network).to(candidate.device)
    if candidate.device == "cuda" and not candidate.config.is_transformer:
        network = channels_last(network)
    forward = make(network)

    def on_cuda(images: Tensor) -> Tensor:
        # Settings of the process: each candidate sets its values before its calls.
        torch.backends.cudnn.benchmark = True
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = candidate.precision == "tf32"
        with torch.inference_mode():
            return forward(images).float()

    def on_cpu(images: Any) -> Any:
        torch.set_num_threads(candidate.threads)  # a setting of the calling thread
        with torch.inference_mode():
            return forward(torch.from_numpy(images)).float().numpy()

    return on_cuda if candidate.device == "cuda" else on_cpu


def channels_last(network: Uint8Network) -> Uint8Network:
    module: Any = network  # Module.to has no type for a layout alone
    laid_out: Uint8Network = module.to(memory_format=torch.channels_last)
    return laid_out


def compile_network(network: Uint8Network) -> Forward:
    """Compiles at the first call with each batch size. Raises Unavailable if that fails: eager would be another row."""
    on_cuda = next(network.parameters()).is_cuda
    if on_cuda and not importlib.util.find_spec("triton"):
        raise Unavailable("torch.compile on CUDA needs Triton's compiler (pip install triton)")
    if not on_cuda and not shutil.which(os.environ.get("CXX", "g++")):
        raise Unavailable("torch.compile on the CPU needs a C++ compiler (g++, or $CXX)")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the compiler warns of its own deprecations at import
        importlib.import_module("torch._inductor.compile_fx")
    torch._dynamo.config.recompile_limit = SHAPES
    compiled: Forward = torch.compile(network, dynamic=False, fullgraph=True)

    def forward(images: Tensor) -> Tensor:
        try:
            return compiled(images)
        except torch._dynamo.exc.TorchDynamoException as error:
            reason = next(iter(str(error).splitlines()), "no reason given")
            raise Unavailable(f"torch.compile failed: {reason}") from error

    return forward


class CudaGraphs:
    """Calls by a CUDA graph for each batch size; the next call overwrites the logits."""

    def __init__(self, network: Uint8Network) -> None:
        self.network = network
        self.captured: dict[torch.Size, tuple[torch.cuda.CUDAGraph, Tensor, Tensor]] = {}

    def __call__(self, images: Tensor) -> Tensor:
        if images.shape not in self.captured:
            self.captured[images.shape] = self._capture(images)
        graph, static_images, logits = self.captured[images.shape]
        static_images.copy_(images)
        graph.replay()
        return logits

    def _capture(self, images: Tensor) -> tuple[torch.cuda.CUDAGraph, Tensor, Tensor]:
        static_images, graph, side = images.clone(), torch.cuda.CUDAGraph(), torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(CAPTURE_WARM_UPS):
                self.network(static_images)
        torch.cuda.current_stream().wait_stream(side)
        with torch.cuda.graph(graph):
            logits: Tensor = self.network(static_images)
        return graph, static_images, logits
