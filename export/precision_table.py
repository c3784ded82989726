"""The table of precisions: the type of the products, the tolerance of logits, and the engines that gain speed.

Imports no library, because the commands' help needs it. `export/precision.py` converts a graph.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Precision = Literal["fp32", "tf32", "fp16", "bf16", "int8"]
"""fp16 and bf16 leave the Softmax in float32; int8 leaves all but products with weights."""
Device = Literal["cpu", "cuda"]
EngineKind = Literal["torch", "onnxruntime", "openvino", "tensorrt"]


@dataclass(frozen=True)
class Properties:
    """Of a precision. `dtype`: of the products. `tolerance`: of the logits, relative to the largest logit.

    `cpu`, `cuda`: engines that are measured in this precision on that device. `rounding`: engines that read the float32
    file and round by themselves. `plan`: float types that layers of a TensorRT plan may have, the main type first;
    empty if no plan of this precision is published.
    """

    dtype: str
    tolerance: float
    cpu: tuple[EngineKind, ...]
    cuda: tuple[EngineKind, ...]
    rounding: tuple[EngineKind, ...] = ()
    plan: tuple[str, ...] = ()

    def engines(self, device: Device) -> tuple[EngineKind, ...]:
        return self.cpu if device == "cpu" else self.cuda


# Tolerances: measured on vit, vitbnffn, vitbn and cnn: fp16 0.0008 (TF32 has as many bits), bf16 0.012, int8 0.045.
# Without the 1/255, vit and vitbnffn err by only 0.013 to 0.021 (their first LayerNorm removes a scale): bf16 and int8
# miss that.
# Engines: on CPUs ONNX Runtime casts around every float16 operator and has no kernels for bfloat16, and PyTorch's
# float16 kernels gain nothing.
PRECISIONS: Mapping[Precision, Properties] = {
    "fp32": Properties(
        *("float32", 2e-5),
        cpu=("torch", "onnxruntime", "openvino"),
        cuda=("torch", "onnxruntime", "tensorrt"),
        plan=("float32",),
    ),
    "tf32": Properties(
        *("float32", 0.01),
        cpu=(),
        cuda=("torch", "onnxruntime", "tensorrt"),
        rounding=("onnxruntime", "tensorrt"),
        plan=("float32", "tfloat32"),
    ),
    "fp16": Properties(
        *("float16", 0.01),
        cpu=(),
        cuda=("torch", "onnxruntime", "tensorrt"),
        plan=("float16", "float32"),  # the Softmax stays in float32
    ),
    "bf16": Properties(
        *("bfloat16", 0.05),
        cpu=("torch", "openvino"),
        cuda=("torch", "tensorrt"),
        rounding=("openvino",),
    ),
    "int8": Properties(
        *("int8", 0.15),
        cpu=("onnxruntime", "openvino"),
        cuda=("tensorrt",),
    ),
}
IN_ONNX_RUNTIME = tuple(name for name, row in PRECISIONS.items() if "onnxruntime" in (*row.cpu, *row.cuda))
IN_A_PLAN = tuple(name for name, row in PRECISIONS.items() if row.plan)


def file_precision(precision: Precision, engine: EngineKind) -> Precision:
    """The precision of the ONNX file from which the engine computes in `precision`."""
    return "fp32" if engine in PRECISIONS[precision].rounding else precision
