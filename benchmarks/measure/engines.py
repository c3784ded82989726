"""The table of runtimes, and how a candidate is started.

The table imports no engine's library, since the commands' help reads it. A new runtime is a row in RUNTIMES. A new
engine is also a function, and a name in `export/precision_table.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from benchmarks.measure.candidate import Candidate, Classify, Program, Runtime, Sizes
from benchmarks.measure.devices import cores
from benchmarks.measure.measured_network import Network, shipped_network
from export.precision_table import Device, Precision

if TYPE_CHECKING:
    from models.networks.config import ModelName


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


OPTIMISED = RUNTIMES["onnx-optimized"]
DEFAULT = Candidate(shipped_network("vitbn"), OPTIMISED)


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
