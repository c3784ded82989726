import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from backends import imported

from serving.backends.config_check import ModelRefused


@pytest.fixture
def backend() -> Iterator[ModuleType]:
    with imported("openvino") as module:
        yield module


def config(max_batch_size: int = 0, **parameters: str) -> dict[str, Any]:
    texts = {key: {"string_value": value} for key, value in parameters.items()}
    return {"max_batch_size": max_batch_size, "parameters": texts}


@pytest.mark.parametrize(
    ("parameters", "has_bfloat16", "expected"),
    [
        ({}, True, "f32"),
        ({}, False, "f32"),
        ({"HINT_BF16": ""}, True, "f32"),
        ({"HINT_BF16": "YES"}, True, "bf16"),
        ({"HINT_BF16": "yes"}, True, "bf16"),
        ({"HINT_BF16": "YES"}, False, "f32"),
        ({"INFERENCE_PRECISION_HINT": "bf16"}, True, "f32"),  # no parameter of the native backend's
    ],
)
def test_bfloat16_only_where_asked_for_and_there(
    backend: ModuleType, parameters: dict[str, str], has_bfloat16: bool, expected: str
) -> None:
    assert backend.cpu_properties(config(**parameters), has_bfloat16) == {"INFERENCE_PRECISION_HINT": expected}


def test_every_property_is_passed_on_and_taken(backend: ModuleType) -> None:
    wanted = {
        "INFERENCE_NUM_THREADS": "1",
        "COMPILATION_NUM_THREADS": "2",
        "NUM_STREAMS": "auto",
        "PERFORMANCE_HINT": "throughput",
        "model_config": "{}",
    }
    properties = backend.cpu_properties(config(**wanted), bfloat16=False)
    assert properties == {
        "INFERENCE_PRECISION_HINT": "f32",
        "INFERENCE_NUM_THREADS": "1",
        "COMPILATION_NUM_THREADS": "2",
        "NUM_STREAMS": "AUTO",
        "PERFORMANCE_HINT": "THROUGHPUT",
    }
    del properties["COMPILATION_NUM_THREADS"]  # OpenVINO 2026.4 refuses it for the CPU
    core = importlib.import_module("openvino").Core()
    core.set_property("CPU", properties)
    assert core.get_property("CPU", "INFERENCE_NUM_THREADS") == 1
    assert core.get_property("CPU", "INFERENCE_PRECISION_HINT").get_type_name() == "f32"


@pytest.mark.parametrize(
    ("wanted", "kind", "reason"),
    [
        (config(), "GPU", "instance_group: expected KIND_CPU, found KIND_GPU"),
        (config(), "MODEL", "instance_group: expected KIND_CPU, found KIND_MODEL"),
        (config(max_batch_size=1), "CPU", "max_batch_size: expected 0 and dims that begin with -1, found 1"),
        (config(CPU_EXTENSION_PATH="/lib/a.so"), "CPU", "'CPU_EXTENSION_PATH': this server's backend loads no"),
        (config(RESHAPE_IO_LAYERS="yes"), "CPU", "'RESHAPE_IO_LAYERS': this server's backend does not reshape"),
        (config(HINT_BF16="NO"), "CPU", "'HINT_BF16': expected YES, found 'NO'"),
        *[
            (config(**{key: value}), "CPU", f"parameter '{key}': expected {expected}, found '{value}'")
            for key, value, expected in [
                ("INFERENCE_NUM_THREADS", "-1", "a non-negative number"),
                ("INFERENCE_NUM_THREADS", "2 threads", "a non-negative number"),
                ("COMPILATION_NUM_THREADS", "all", "a non-negative number"),
                ("NUM_STREAMS", "many", "AUTO, NUMA, a non-negative number"),
                ("PERFORMANCE_HINT", "SPEED", "LATENCY, THROUGHPUT, CUMULATIVE_THROUGHPUT"),
            ]
        ],
    ],
)
def test_unsupported_settings_are_refused(backend: ModuleType, wanted: dict[str, Any], kind: str, reason: str) -> None:
    with pytest.raises(ModelRefused) as refusal:
        backend.check_config(wanted, kind) or backend.cpu_properties(wanted, bfloat16=True)
    assert reason in str(refusal.value)


def test_settings_without_effect_are_accepted(backend: ModuleType) -> None:
    backend.check_config(
        config(
            RESHAPE_IO_LAYERS="NO", CPU_EXTENSION_PATH="", ENABLE_BATCH_PADDING="YES", SKIP_OV_DYNAMIC_BATCHSIZE="x"
        ),
        "CPU",
    )


def test_missing_openvino_is_one_line(backend: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "openvino", None)  # as if not installed
    with pytest.raises(ModelRefused) as refusal:
        backend.TritonPythonModel().load(tmp_path / "model.onnx", config(), {"model_instance_kind": "CPU"})
    assert str(refusal.value) == f"OpenVINO is not installed in {sys.prefix}: pip install openvino"


def test_openvino_reports_to_nobody(backend: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "openvino_telemetry", raising=False)
    backend._core()
    assert sys.modules["openvino_telemetry"] is None  # OpenVINO uses its stub
