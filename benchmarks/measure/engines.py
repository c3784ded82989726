"""All engines, a function each. Imports no library of them: the commands' help needs this module.

A new engine is a function and a line in ENGINES.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, get_args

if TYPE_CHECKING:
    from benchmarks.measure.candidate import Candidate
    from models.config import ModelName

Device = Literal["cpu", "cuda"]
Precision = Literal["fp32", "tf32", "fp16", "fp16-softmax", "bf16", "int8", "fp8"]
"""fp16 leaves the Softmax in float32, fp16-softmax does not; int8 and fp8 leave all but products with weights."""
Rewrites = Literal["none", "folded", "all"]

PRECISIONS: tuple[Precision, ...] = get_args(Precision)
SERVED_PRECISIONS = tuple(precision for precision in PRECISIONS if precision not in ("fp16-softmax", "fp8"))

Classify = Callable[[Any], Any]
"""uint8 images (B, C, H, W) -> float32 logits (B, classes): numpy arrays on the CPU, tensors on CUDA.

On CUDA it may return before the device has done its work.
"""
Sizes = tuple[int, ...]
"""Images of the calls to come; TensorRT has a profile for each."""


def eager(network: Any, candidate: Candidate, sizes: Sizes) -> Classify:
    from benchmarks.measure.in_torch import in_torch

    return in_torch(network, candidate, lambda network: network)


def compiled(network: Any, candidate: Candidate, sizes: Sizes) -> Classify:
    from benchmarks.measure.in_torch import compile_network, in_torch

    return in_torch(network, candidate, compile_network)


def cuda_graphs(network: Any, candidate: Candidate, sizes: Sizes) -> Classify:
    from benchmarks.measure.in_torch import CudaGraphs, in_torch

    return in_torch(network, candidate, CudaGraphs)


def onnxruntime(data: bytes, candidate: Candidate, sizes: Sizes) -> Classify:
    from benchmarks.measure.in_onnx import on_cpu, on_cuda

    return on_cpu(data, candidate) if candidate.device == "cpu" else on_cuda(data, candidate, sizes)


def openvino(data: bytes, candidate: Candidate, sizes: Sizes) -> Classify:
    from export.engines.openvino_engine import openvino_classifier

    return openvino_classifier(data, candidate.precision == "bf16", candidate.threads)


def tensorrt(data: bytes, candidate: Candidate, sizes: Sizes) -> Classify:
    from benchmarks.measure.in_onnx import in_tensorrt

    return in_tensorrt(data, candidate, sizes)


@dataclass(frozen=True)
class Engine:
    """`cpu`, `cuda`: precisions that `start` knows there. `fused`: attention in the form that GPU kernels fuse.

    `graph`: a call is one CUDA graph.

    `runtimes`: of each name for `--runtime` the rewrites and the words for them.
    """

    label: str
    start: Callable[[Any, Candidate, Sizes], Classify]
    program: Literal["network", "file"]
    cpu: tuple[Precision, ...] = ()
    cuda: tuple[Precision, ...] = ()
    fused: bool = False
    graph: bool = False
    runtimes: Mapping[str, tuple[Rewrites, str]] = field(default_factory=dict)

    def precisions(self, device: Device) -> tuple[Precision, ...]:
        return self.cpu if device == "cpu" else self.cuda


# On CPUs ONNX Runtime casts around every float16 operator, and PyTorch's kernels gain nothing.
ON_CPU: tuple[Precision, ...] = ("fp32", "bf16")
ON_CUDA: tuple[Precision, ...] = ("fp32", "tf32", "fp16", "bf16")
IN_ONNX_RUNTIME: tuple[Precision, ...] = ("fp32", "tf32", "fp16")
IN_TENSORRT: tuple[Precision, ...] = ("fp32", "tf32", "fp16", "fp16-softmax", "bf16", "int8", "fp8")
IN_ITS_PROVIDER: tuple[Precision, ...] = ("tf32", "fp16")  # no option turns TF32 off

ENGINES: dict[str, Engine] = {
    "torch": Engine(
        *("PyTorch eager", eager, "network", ON_CPU, ON_CUDA),
        runtimes={"torch": ("none", "as published"), "torch-optimized": ("all", "all rewrites")},
    ),
    "torch-sdpa": Engine(
        *("PyTorch eager", eager, "network", ON_CPU, ON_CUDA),
        fused=True,
        runtimes={
            "torch-sdpa": ("none", "fused attention"),
            "torch-sdpa-optimized": ("all", "all rewrites, fused attention"),
        },
    ),
    "torch-compile": Engine(
        *("PyTorch compiled", compiled, "network", ON_CPU, ON_CUDA),
        runtimes={"torch-compile": ("none", "as published"), "torch-compile-optimized": ("all", "all rewrites")},
    ),
    "torch-cudagraphs": Engine(
        *("PyTorch CUDA graphs", cuda_graphs, "network", (), ON_CUDA),
        fused=True,
        graph=True,
        runtimes={
            "torch-cudagraphs": ("none", "fused attention"),
            "torch-cudagraphs-optimized": ("all", "all rewrites, fused attention"),
        },
    ),
    "onnxruntime": Engine(
        *("ONNX Runtime", onnxruntime, "file", ("fp32", "int8"), IN_ONNX_RUNTIME),
        runtimes={
            "onnx": ("none", "plain export"),
            "onnx-folded": ("folded", "norms folded"),
            "onnx-optimized": ("all", "all rewrites"),
        },
    ),
    "onnxruntime-cudagraph": Engine(
        *("ONNX Runtime", onnxruntime, "file", (), IN_ONNX_RUNTIME),
        graph=True,
        runtimes={"onnx-cudagraph": ("all", "all rewrites, CUDA graph")},
    ),
    "onnxruntime-tensorrt": Engine(
        *("TensorRT in ONNX Runtime", onnxruntime, "file", (), IN_ITS_PROVIDER),
        fused=True,
        runtimes={"onnx-tensorrt": ("all", "all rewrites")},
    ),
    "onnxruntime-tensorrt-cudagraph": Engine(
        *("TensorRT in ONNX Runtime", onnxruntime, "file", (), IN_ITS_PROVIDER),
        fused=True,
        graph=True,
        runtimes={"onnx-tensorrt-cudagraph": ("all", "all rewrites, CUDA graph")},
    ),
    "openvino": Engine(
        *("OpenVINO", openvino, "file", ON_CPU),
        runtimes={"openvino": ("all", "all rewrites")},
    ),
    "tensorrt": Engine(
        *("TensorRT", tensorrt, "file", (), IN_TENSORRT),
        fused=True,
        runtimes={
            "tensorrt-plain": ("none", "plain export"),
            "tensorrt-folded": ("folded", "norms folded"),
            "tensorrt": ("all", "all rewrites"),
        },
    ),
    "tensorrt-cudagraph": Engine(
        *("TensorRT", tensorrt, "file", (), IN_TENSORRT),
        fused=True,
        graph=True,
        runtimes={"tensorrt-cudagraph": ("all", "all rewrites, CUDA graph")},
    ),
    "tensorrt-refit": Engine(
        *("TensorRT", tensorrt, "file", (), IN_TENSORRT[:4]),
        fused=True,
        runtimes={"tensorrt-refit": ("all", "all rewrites, built with other weights and refitted")},
    ),
}
SERVED_ENGINES = ("onnxruntime", "openvino", "tensorrt")  # Triton has a backend for each

RUNTIMES: dict[str, tuple[str, Rewrites]] = {
    name: (engine, rewrites) for engine, each in ENGINES.items() for name, (rewrites, _) in each.runtimes.items()
}
"""Name for `--runtime` -> engine and rewrites."""

COMPARED: tuple[ModelName, ...] = ("vit", "vitbnffn", "vitbn", "cnn")
ORT = f"{ENGINES['onnxruntime'].label}, float32"
BASELINE = "torch"
DEFAULT_RUNTIMES: dict[Device, tuple[str, ...]] = {
    "cpu": ("torch", "onnx-folded", "onnx-optimized"),  # all models at batch 5000 in about two minutes
    "cuda": (
        *("torch", "torch-sdpa", "torch-sdpa-optimized", "torch-compile", "torch-cudagraphs-optimized"),
        *("onnx-folded", "onnx-optimized", "tensorrt-plain", "tensorrt-folded", "tensorrt", "tensorrt-cudagraph"),
    ),
}
DEFAULT_PRECISIONS: dict[Device, tuple[Precision, ...]] = {"cpu": ("fp32",), "cuda": ("fp32", "tf32", "fp16")}


def why_not(engine: str, precision: Precision, device: Device) -> str | None:
    """None if the engine runs in that precision on the device."""
    precisions = ENGINES[engine].precisions(device)
    if not precisions:
        return f"{ENGINES[engine].label} needs another device than {device}"
    if precision not in precisions:
        return f"{ENGINES[engine].label} on {device} is measured only in {', '.join(precisions)}"
    return None
