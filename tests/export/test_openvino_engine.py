from pathlib import Path

import numpy as np
import pytest

from export.checkpoint_to_onnx import Form
from export.checkpoint_to_version import export_checkpoint
from export.compare_logits import compare, onnx_classifier
from export.engines import openvino_engine
from export.engines.openvino_engine import check_accuracy, has_bfloat16, openvino_classifier
from export.errors import Unavailable
from export.precision import accuracy
from models.data import Dataset


@pytest.fixture(scope="module")
def graph(trained: Path) -> bytes:
    return export_checkpoint(trained, Form(rewrites="all")).onnx


@pytest.fixture
def bfloat16() -> bool:
    if not has_bfloat16():
        pytest.skip("this CPU has no bfloat16")
    return True


def test_float32_answers_as_onnx_runtime(graph: bytes, digits: Dataset) -> None:
    found = openvino_classifier(graph, bfloat16=False)
    compare("OpenVINO, float32", onnx_classifier(graph), found, digits.test_images[:64], 1e-4)
    assert found(digits.test_images[:3]).dtype == np.float32


def test_answers_stay_after_the_next_call(graph: bytes, digits: Dataset) -> None:
    classify = openvino_classifier(graph, bfloat16=False)
    first = classify(digits.test_images[:4])
    kept = first.copy()
    classify(digits.test_images[4:8])
    np.testing.assert_array_equal(first, kept)


def test_bfloat16_is_another_precision_and_passes_the_gate(graph: bytes, digits: Dataset, bfloat16: bool) -> None:
    images = digits.test_images[:64]
    error = np.abs(openvino_classifier(graph, bfloat16)(images) - onnx_classifier(graph)(images)).max()
    assert 1e-4 < error < 1
    found = check_accuracy(graph, digits, 1.0, bfloat16)
    assert found.accuracy == accuracy(openvino_classifier(graph, bfloat16), digits) > 0.95
    assert found.reference == accuracy(onnx_classifier(graph), digits)
    assert found.images == len(digits.test_labels)
    assert str(found).startswith(f"test accuracy {100 * found.accuracy:.2f} % in OpenVINO (bfloat16) against ")


def test_bfloat16_is_not_imitated(graph: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openvino_engine, "has_bfloat16", lambda: False)
    with pytest.raises(Unavailable, match="expected a CPU with AVX-512 BF16 or AMX, found none"):
        openvino_classifier(graph, bfloat16=True)
