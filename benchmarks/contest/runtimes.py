"""All runtimes. Imports no torch: the commands' help needs this module."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from models.config import ModelConfig, ModelName

Device = Literal["cpu", "cuda"]
Precision = Literal["fp32", "tf32", "fp16", "bf16", "int8"]
Engine = Literal["eager", "compiled", "graphs", "onnxruntime", "openvino", "tensorrt"]
Rewrites = Literal["none", "folded", "all"]

PRECISIONS: tuple[Precision, ...] = get_args(Precision)
COMPARED: tuple[ModelName, ...] = ("vit", "vitbnffn", "vitbn", "cnn")

ENGINES: dict[Engine, str] = {
    "eager": "PyTorch eager",
    "compiled": "PyTorch compiled",
    "graphs": "PyTorch CUDA graphs",
    "onnxruntime": "ONNX Runtime",
    "openvino": "OpenVINO",
    "tensorrt": "TensorRT",
}
ORT = f"{ENGINES['onnxruntime']}, float32"
TORCH_ENGINES: tuple[Engine, ...] = ("eager", "compiled", "graphs")
SERVED_ENGINES: tuple[Engine, ...] = ("onnxruntime", "openvino", "tensorrt")  # Triton has a backend for each

# On CPUs ONNX Runtime casts around every float16 operator, and PyTorch's kernels gain nothing.
SUPPORTED: dict[tuple[Engine, Device], tuple[Precision, ...]] = {
    ("eager", "cpu"): ("fp32", "bf16"),
    ("eager", "cuda"): ("fp32", "tf32", "fp16", "bf16"),
    ("compiled", "cpu"): ("fp32", "bf16"),
    ("compiled", "cuda"): ("fp32", "tf32", "fp16", "bf16"),
    ("graphs", "cuda"): ("fp32", "tf32", "fp16", "bf16"),
    ("onnxruntime", "cpu"): ("fp32", "int8"),
    ("onnxruntime", "cuda"): ("fp32", "tf32", "fp16"),
    ("openvino", "cpu"): ("fp32", "bf16"),
    ("tensorrt", "cuda"): ("fp32", "tf32", "fp16"),
}


@dataclass(frozen=True)
class Runtime:
    """`fused`: attention in the form that GPU kernels fuse. `half_softmax`: in fp16 also the Softmax is float16.

    `graph`: TensorRT's kernels as one CUDA graph.
    """

    engine: Engine
    how: str
    rewrites: Rewrites = "none"
    fused: bool = False
    half_softmax: bool = False
    graph: bool = False

    @property
    def label(self) -> str:
        return f"{ENGINES[self.engine]}, {self.how}"


RUNTIMES: dict[str, Runtime] = {
    "torch": Runtime("eager", "as published"),
    "torch-sdpa": Runtime("eager", "fused attention", fused=True),
    "torch-optimized": Runtime("eager", "all rewrites", "all"),
    "torch-sdpa-optimized": Runtime("eager", "all rewrites, fused attention", "all", fused=True),
    "torch-compile": Runtime("compiled", "as published"),
    "torch-compile-optimized": Runtime("compiled", "all rewrites", "all"),
    "torch-cudagraphs": Runtime("graphs", "as published"),
    "torch-cudagraphs-optimized": Runtime("graphs", "all rewrites", "all", fused=True),
    "onnx": Runtime("onnxruntime", "plain export"),
    "onnx-folded": Runtime("onnxruntime", "norms folded", "folded"),
    "onnx-optimized": Runtime("onnxruntime", "all rewrites", "all"),
    "openvino": Runtime("openvino", "all rewrites", "all"),
    "tensorrt-plain": Runtime("tensorrt", "plain export", fused=True),
    "tensorrt-folded": Runtime("tensorrt", "norms folded", "folded", fused=True),
    "tensorrt": Runtime("tensorrt", "all rewrites", "all", fused=True),
    "tensorrt-cudagraph": Runtime("tensorrt", "all rewrites, CUDA graph", "all", fused=True, graph=True),
    "tensorrt-half-softmax": Runtime("tensorrt", "all rewrites, fp16 softmax", "all", fused=True, half_softmax=True),
}
BASELINE = "torch"
DEFAULT_RUNTIMES: dict[Device, tuple[str, ...]] = {
    "cpu": ("torch", "onnx-folded", "onnx-optimized"),  # all models at batch 5000 in about two minutes
    "cuda": (
        *("torch", "torch-sdpa", "torch-sdpa-optimized", "torch-compile", "torch-cudagraphs-optimized"),
        *("onnx-folded", "onnx-optimized", "tensorrt-plain", "tensorrt-folded", "tensorrt", "tensorrt-cudagraph"),
        "tensorrt-half-softmax",
    ),
}
DEFAULT_PRECISIONS: dict[Device, tuple[Precision, ...]] = {"cpu": ("fp32",), "cuda": ("fp32", "tf32", "fp16")}


def why_not(engine: Engine, precision: Precision, device: Device) -> str | None:
    """None if the engine runs in that precision on the device."""
    precisions = SUPPORTED.get((engine, device), ())
    if not precisions:
        return f"{ENGINES[engine]} needs another device than {device}"
    if precision not in precisions:
        return f"{ENGINES[engine]} on {device} is measured only in {', '.join(precisions)}"
    return None


@dataclass(frozen=True)
class Entry:
    config: ModelConfig
    runtime: str
    precision: Precision = "fp32"

    @property
    def name(self) -> str:
        return f"{self.config.model} {self.runtime} {self.precision}"

    @property
    def how(self) -> Runtime:
        return RUNTIMES[self.runtime]

    @property
    def is_baseline(self) -> bool:
        return self.runtime == BASELINE and self.precision == "fp32"

    def why_not(self, device: Device) -> str | None:
        if reason := why_not(self.how.engine, self.precision, device):
            return reason
        if self.how.fused and self.how.engine == "eager" and not self.config.is_transformer:
            return "the network has no attention"
        if self.how.half_softmax and not (self.precision == "fp16" and self.config.is_transformer):
            return "its softmax has the precision of all other operators"
        return None


@dataclass(frozen=True)
class Setup:
    """The default engine is PyTorch eager or, for a file, ONNX Runtime.

    `threads`: of the CPU, 0 for all cores. TensorRT also needs `config` and, as `batches`, the images per call.
    """

    engine: Engine | None = None
    precision: Precision = "fp32"
    device: Device = "cpu"
    threads: int = 0
    config: ModelConfig | None = None
    batches: tuple[int, ...] = (1,)
    graph: bool = False
