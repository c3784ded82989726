"""The table of all that can be timed: each runtime, what it stands for, and in which precisions it computes where.

Needs no torch: the command's help is made of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

Device = Literal["cpu", "cuda"]
Precision = Literal["fp32", "tf32", "fp16", "bf16", "int8"]
Engine = Literal["eager", "compiled", "graphs", "onnxruntime", "openvino", "tensorrt"]
Rewrites = Literal["none", "folded", "all"]

PRECISIONS: tuple[Precision, ...] = get_args(Precision)

ENGINES: dict[Engine, str] = {
    "eager": "PyTorch eager",
    "compiled": "PyTorch compiled",
    "graphs": "PyTorch CUDA graphs",
    "onnxruntime": "ONNX Runtime",
    "openvino": "OpenVINO",
    "tensorrt": "TensorRT",
}
TORCH_ENGINES: tuple[Engine, ...] = ("eager", "compiled", "graphs")

# float16 is left to GPUs: on CPUs ONNX Runtime casts around every operator, and PyTorch's kernels are no faster for it.
SUPPORTED: dict[tuple[Engine, Device], tuple[Precision, ...]] = {
    ("eager", "cpu"): ("fp32", "bf16"),
    ("eager", "cuda"): ("fp32", "tf32", "fp16", "bf16"),
    ("compiled", "cpu"): ("fp32", "bf16"),
    ("compiled", "cuda"): ("fp32", "tf32", "fp16", "bf16"),
    ("graphs", "cuda"): ("fp32", "tf32", "fp16", "bf16"),
    ("onnxruntime", "cpu"): ("fp32", "int8"),
    ("onnxruntime", "cuda"): ("fp32", "tf32", "fp16"),
    ("openvino", "cpu"): ("fp32", "bf16"),
    ("tensorrt", "cuda"): ("fp32", "fp16"),
}


@dataclass(frozen=True)
class Runtime:
    """One way to run a network: the engine, the exact rewrites done before, and whether attention is PyTorch's own."""

    engine: Engine
    how: str
    rewrites: Rewrites = "none"
    fused: bool = False

    @property
    def label(self) -> str:
        """What a table calls it."""
        return f"{ENGINES[self.engine]}, {self.how}"


RUNTIMES: dict[str, Runtime] = {
    "torch": Runtime("eager", "as published"),
    "torch-sdpa": Runtime("eager", "fused attention", fused=True),
    "torch-optimized": Runtime("eager", "all rewrites", "all"),
    "torch-compile": Runtime("compiled", "as published"),
    "torch-compile-optimized": Runtime("compiled", "all rewrites", "all"),
    "torch-cudagraphs": Runtime("graphs", "as published"),
    "torch-cudagraphs-optimized": Runtime("graphs", "all rewrites", "all"),
    "onnx": Runtime("onnxruntime", "plain export"),
    "onnx-folded": Runtime("onnxruntime", "norms folded", "folded"),
    "onnx-optimized": Runtime("onnxruntime", "all rewrites", "all"),
    "openvino": Runtime("openvino", "all rewrites", "all"),
    "tensorrt": Runtime("tensorrt", "all rewrites", "all"),
}
BASELINE = "torch"
DEFAULT_RUNTIMES = ("torch", "onnx-folded", "onnx-optimized")  # of all models at batch 5000 in about two minutes


def why_not(runtime: Runtime, precision: Precision, device: Device) -> str | None:
    """Why nothing is run in that way, on whichever machine; None where it can be."""
    precisions = SUPPORTED.get((runtime.engine, device), ())
    if not precisions:
        return f"{ENGINES[runtime.engine]} needs another device than {device}"
    if precision not in precisions:
        return f"{ENGINES[runtime.engine]} on {device} is measured in {', '.join(precisions)} alone"
    return None
