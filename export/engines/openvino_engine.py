"""A graph in OpenVINO, as Triton's backend `openvino` runs it.

In: the bytes of an ONNX file and a labelled dataset. Out: a classifier on this CPU; its test accuracy beside ONNX
Runtime's, or AccuracyError.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from export.equivalence import Classifier, Logits
from export.errors import Unavailable
from export.precision import Accuracies, engine_accuracy
from models.data import Dataset
from models.networks.config import INPUT_NAME, OUTPUT_NAME


def has_bfloat16() -> bool:
    """Natively, not emulated. Raises Unavailable."""
    return "BF16" in openvino_module().Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")


def openvino_classifier(data: bytes, bfloat16: bool, threads: int = 0) -> Classifier:
    """uint8 (n, C, H, W) -> float32 (n, K) on the CPU. 0 threads: all cores. Raises Unavailable."""
    if bfloat16 and not has_bfloat16():
        raise Unavailable("OpenVINO in bfloat16: expected a CPU with AVX-512 BF16 or AMX, found none")
    core = openvino_module().Core()
    precision = "bf16" if bfloat16 else "f32"
    core.set_property("CPU", {"INFERENCE_PRECISION_HINT": precision, "INFERENCE_NUM_THREADS": threads})
    request = core.compile_model(core.read_model(data), "CPU").create_infer_request()
    infer: Callable[..., dict[str, Logits]] = request.infer
    return lambda images: infer({INPUT_NAME: images}, share_inputs=True)[OUTPUT_NAME]


def check_accuracy(data: bytes, dataset: Dataset, max_drop_points: float, bfloat16: bool) -> Accuracies:
    """Raises AccuracyError, as `engine_accuracy`, or Unavailable."""
    classify, precision = openvino_classifier(data, bfloat16), "bfloat16" if bfloat16 else "float32"
    return engine_accuracy("OpenVINO", precision, classify, data, dataset, max_drop_points)


def openvino_module() -> Any:
    sys.modules["openvino_telemetry"] = None  # type: ignore[assignment]  # stops OpenVINO's reports to Intel
    try:
        import openvino
    except ModuleNotFoundError as error:
        raise Unavailable("OpenVINO is not installed: pip install openvino") from error
    return openvino
