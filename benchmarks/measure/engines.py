"""Candidates: a network, the runtime that computes it, its precision, threads and device; and the table of runtimes.

The table imports no engine's library, since the commands' help reads it. A new runtime is a row in RUNTIMES. A new
engine is also a function, and a name in `export/precision_table.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from benchmarks.measure.devices import cores
from benchmarks.measure.network import Network, shipped_network
from export.precision_table import PRECISIONS, Device, EngineKind, Precision

if TYPE_CHECKING:
    from export.checkpoint_to_onnx import Rewrites, Uint8Network
    from models.networks.config import ModelConfig, ModelName

Program: TypeAlias = "Uint8Network | bytes"
"""A PyTorch network, or the bytes of an ONNX file."""
Classify = Callable[[Any], Any]
"""uint8 images (B, C, H, W) -> float32 logits (B, classes): numpy arrays on the CPU, tensors on CUDA.

On CUDA a call may return before the device has finished.
"""
Sizes = tuple[int, ...]
"""The batch sizes of all later calls. TensorRT optimises an engine for each size, in a profile."""


@dataclass(frozen=True)
class Runtime:
    """A way to compute a network. `name`: for `--runtime`. `label`: in tables, the engine before the first comma.

    `engine`: its name in the table of precisions. `start`: takes a network if the engine is torch, else the bytes of an
    ONNX file. `rewrites`: what the network goes through before. `fused`: attention has the form that GPU kernels fuse.
    `graph`: a call replays a CUDA graph.
    """

    name: str
    label: str
    engine: EngineKind
    start: Callable[[Any, Candidate, Sizes], Classify]
    rewrites: Rewrites
    fused: bool = False
    graph: bool = False

    @property
    def takes_network(self) -> bool:
        return self.engine == "torch"

    @property
    def library(self) -> str:
        """The label without the rewrites."""
        return self.label.partition(",")[0]

    def precisions(self, device: Device) -> tuple[Precision, ...]:
        """The precisions that are measured on `device`; empty if the runtime cannot run there."""
        if self.graph and device == "cpu":
            return ()
        return tuple(name for name, row in PRECISIONS.items() if self.engine in row.engines(device))


def eager(network: Any, candidate: Candidate, sizes: Sizes) -> Classify:
    from benchmarks.measure.run_torch import in_torch

    return in_torch(network, candidate, lambda network: network)


def compiled(network: Any, candidate: Candidate, sizes: Sizes) -> Classify:
    from benchmarks.measure.run_torch import compile_network, in_torch

    return in_torch(network, candidate, compile_network)


def cuda_graphs(network: Any, candidate: Candidate, sizes: Sizes) -> Classify:
    from benchmarks.measure.run_torch import CudaGraphs, in_torch

    return in_torch(network, candidate, CudaGraphs)


def onnxruntime(data: bytes, candidate: Candidate, sizes: Sizes) -> Classify:
    from benchmarks.measure.run_onnxruntime import on_cpu, on_cuda

    return on_cpu(data, candidate) if candidate.device == "cpu" else on_cuda(data, candidate)


def openvino(data: bytes, candidate: Candidate, sizes: Sizes) -> Classify:
    from export.engines.openvino_engine import openvino_classifier

    return openvino_classifier(data, candidate.precision == "bf16", candidate.threads)


def tensorrt(data: bytes, candidate: Candidate, sizes: Sizes) -> Classify:
    from benchmarks.measure.run_tensorrt import in_tensorrt

    return in_tensorrt(data, candidate, sizes)


RUNTIMES: dict[str, Runtime] = {
    runtime.name: runtime
    for runtime in (
        Runtime("torch", "PyTorch eager, as published", "torch", eager, "none"),
        Runtime("torch-sdpa", "PyTorch eager, fused attention", "torch", eager, "none", fused=True),
        Runtime("torch-compile", "PyTorch compiled, as published", "torch", compiled, "none"),
        Runtime(
            *("torch-cudagraphs", "PyTorch CUDA graphs, fused attention", "torch", cuda_graphs, "none"),
            fused=True,
            graph=True,
        ),
        Runtime("onnx", "ONNX Runtime, plain export", "onnxruntime", onnxruntime, "none"),
        Runtime("onnx-folded", "ONNX Runtime, norms folded", "onnxruntime", onnxruntime, "bn"),
        Runtime("onnx-optimized", "ONNX Runtime, all rewrites", "onnxruntime", onnxruntime, "all"),
        Runtime(
            "onnx-cudagraph", "ONNX Runtime, all rewrites, CUDA graph", "onnxruntime", onnxruntime, "all", graph=True
        ),
        Runtime("openvino", "OpenVINO, all rewrites", "openvino", openvino, "all"),
        Runtime("tensorrt-plain", "TensorRT, plain export", "tensorrt", tensorrt, "none", fused=True),
        Runtime("tensorrt-folded", "TensorRT, norms folded", "tensorrt", tensorrt, "bn", fused=True),
        Runtime("tensorrt", "TensorRT, all rewrites", "tensorrt", tensorrt, "all", fused=True),
        Runtime(
            *("tensorrt-cudagraph", "TensorRT, all rewrites, CUDA graph", "tensorrt", tensorrt, "all"),
            fused=True,
            graph=True,
        ),
    )
}
BASELINE = "torch"
ORT = "ONNX Runtime, float32"
# Triton's backend -> the runtime that computes the same file in this process.
SERVED = {RUNTIMES[name].engine: RUNTIMES[name] for name in ("onnx-optimized", "openvino", "tensorrt")}

COMPARED: tuple[ModelName, ...] = ("vit", "vitbnffn", "vitbn", "cnn")
DEFAULT_RUNTIMES: dict[Device, tuple[str, ...]] = {
    "cpu": ("torch", "onnx-folded", "onnx-optimized"),  # all models at batch 5000 in about two minutes
    "cuda": (
        *("torch", "torch-compile", "torch-cudagraphs", "onnx-folded", "onnx-optimized", "onnx-cudagraph"),
        *("tensorrt", "tensorrt-cudagraph"),
    ),
}
DEFAULT_PRECISIONS: dict[Device, tuple[Precision, ...]] = {"cpu": ("fp32",), "cuda": ("fp32", "fp16")}


@dataclass(frozen=True)
class Candidate:
    """`threads`: of the CPU, 0 for all cores."""

    network: Network
    runtime: Runtime = RUNTIMES["onnx-optimized"]
    precision: Precision = "fp32"
    threads: int = 0
    device: Device = "cpu"

    @property
    def model(self) -> str:
        return self.network.name

    @property
    def config(self) -> ModelConfig:
        return self.network.config

    @property
    def name(self) -> str:
        """In messages."""
        return f"{self.model} {self.runtime.name} {self.precision}"

    @property
    def row(self) -> dict[str, Any]:
        """The candidate's fields in a row of a result."""
        runtime = {"engine": self.runtime.engine, "rewrites": self.runtime.rewrites}
        return runtime | {name: getattr(self, name) for name in ("model", "precision", "threads", "device")}


DEFAULT = Candidate(shipped_network("vitbn"))


def start(program: Program, candidate: Candidate = DEFAULT, sizes: Sizes = (1,)) -> Classify:
    """Starts the candidate's engine for calls with `sizes` images. By default: ONNX Runtime on all cores of the CPU.

    Raises Unavailable without the library or the device.
    """
    return candidate.runtime.start(program, replace(candidate, threads=candidate.threads or cores()), sizes)


def candidates(
    networks: Sequence[Network], runtimes: Sequence[str], precisions: Sequence[Precision], threads: int, device: Device
) -> list[Candidate]:
    """Every combination. `runtimes`: names."""
    return [
        Candidate(network, RUNTIMES[name], precision, threads, device)
        for network in networks
        for name in runtimes
        for precision in precisions
    ]


def why_not(candidate: Candidate) -> str | None:
    """Why the candidate cannot be measured; None if only the attempt can tell."""
    runtime, precision, device = candidate.runtime, candidate.precision, candidate.device
    precisions = runtime.precisions(device)
    if not precisions:
        return f"{runtime.library} needs another device than {device}"
    if precision not in precisions:
        return f"{runtime.library} on {device} is measured only in {', '.join(precisions)}"
    if runtime.name == "torch-sdpa" and not candidate.config.is_transformer:
        return "the network has no attention"
    return None
