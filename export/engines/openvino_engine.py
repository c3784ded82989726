"""Runs an ONNX file in OpenVINO on the CPU, as Triton's backend `openvino` does.

In: the bytes of an ONNX file, a labelled dataset. Out: a classifier; its test accuracy and that of ONNX Runtime.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from export.compare_logits import Classifier, Logits
from export.errors import Unavailable
from export.precision import Accuracies, engine_accuracy
from models.data import Dataset
from models.networks.config import INPUT_NAME, OUTPUT_NAME


def has_bfloat16() -> bool:
    """Whether the CPU computes in bfloat16 natively. Raises Unavailable without OpenVINO."""
    return "BF16" in openvino_module().Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")


def openvino_classifier(data: bytes, bfloat16: bool, threads: int = 0) -> Classifier:
    """uint8 (n, C, H, W) -> logits float32 (n, num_classes). 0 threads: all cores.

    Raises Unavailable without OpenVINO, or for bfloat16 on a CPU without it.
    """
    if bfloat16 and not has_bfloat16():
        raise Unavailable("OpenVINO in bfloat16: expected a CPU with AVX-512 BF16 or AMX, found none")
    core = openvino_module().Core()
    precision = "bf16" if bfloat16 else "f32"
    core.set_property("CPU", {"INFERENCE_PRECISION_HINT": precision, "INFERENCE_NUM_THREADS": threads})
    request = core.compile_model(core.read_model(data), "CPU").create_infer_request()
    infer: Callable[..., dict[str, Logits]] = request.infer
    return lambda images: infer({INPUT_NAME: images}, share_inputs=True)[OUTPUT_NAME]


def check_accuracy(data: bytes, dataset: Dataset, max_drop_points: float, bfloat16: bool) -> Accuracies:
    """Test accuracy in OpenVINO and in ONNX Runtime.

    Raises AccuracyError if OpenVINO's is more than `max_drop_points` percentage points lower, and Unavailable.
    """
    classify, precision = openvino_classifier(data, bfloat16), "bfloat16" if bfloat16 else "float32"
    return engine_accuracy("OpenVINO", precision, classify, data, dataset, max_drop_points)


def openvino_module() -> Any:
    """Imports openvino without telemetry. Raises Unavailable if it is not installed."""
    sys.modules["openvino_telemetry"] = None  # type: ignore[assignment]  # stops OpenVINO's reports to Intel
    try:
        import openvino
    except ModuleNotFoundError as error:
        raise Unavailable("OpenVINO is not installed: pip install openvino") from error
    return openvino
