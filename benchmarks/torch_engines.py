"""A network in PyTorch's engines: eager, compiled, as a CUDA graph.

In: the network as it is served, in the dtype that it computes in. Out: a function of uint8 images (B, C, H, W) in the
memory of its device to float32 logits (B, classes) there: numpy arrays on the CPU, tensors on CUDA, where the function
may return before the device has done its work.
"""

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

from benchmarks.runtimes import Device, Engine, Precision
from benchmarks.unavailable import Unavailable
from export.graph import Served

Run = Callable[[Any], Any]
"""uint8 images -> float32 logits, both in the memory of the device."""

SHAPES = 64  # compiled forms of one network that PyTorch keeps: one for each batch size, model and precision
CAPTURE_WARM_UPS = 3  # calls on a side stream before a capture, as torch.cuda.graph asks for

Forward = Callable[[Tensor], Tensor]


def in_torch(network: Served, engine: Engine, device: Device, threads: int, precision: Precision) -> Run:
    """`network` in one of PyTorch's engines; raises Unavailable where that needs what is not there."""
    makers: dict[Engine, Callable[[Served], Forward]] = {"eager": _eager, "compiled": _compiled, "graphs": CudaGraphs}
    forward = makers[engine](copy.deepcopy(network).to(device))

    def on_cuda(images: Tensor) -> Tensor:
        # Settings of the process, which other contestants set otherwise.
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision == "tf32"
        with torch.inference_mode():
            return forward(images).float()

    def on_cpu(images: Any) -> Any:
        torch.set_num_threads(threads)  # of the calling thread
        with torch.inference_mode():
            return forward(torch.from_numpy(images)).float().numpy()

    return on_cuda if device == "cuda" else on_cpu


def _eager(network: Served) -> Forward:
    return network


def _compiled(network: Served) -> Forward:
    """Compiled at its first call with each batch size, in whole: what fails to compile is Unavailable, never eager."""
    on_cuda = next(network.parameters()).is_cuda
    if on_cuda and not importlib.util.find_spec("triton"):
        raise Unavailable("torch.compile on CUDA needs Triton's compiler (pip install triton)")
    if not on_cuda and not shutil.which(os.environ.get("CXX", "g++")):
        raise Unavailable("torch.compile on the CPU needs a C++ compiler (g++, or $CXX)")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the compiler's own deprecations, at its import
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
    """A network captured as a CUDA graph, one for each batch size met; the logits are overwritten by the next call."""

    def __init__(self, network: Served) -> None:
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
