import os
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from backends import imported
from onnxruntime import ExecutionMode, GraphOptimizationLevel


@pytest.fixture
def backend() -> Iterator[ModuleType]:
    with imported("onnxruntime") as module:
        yield module


def parameters(**values: str) -> dict[str, Any]:
    return {"parameters": {key: {"string_value": value} for key, value in values.items()}}


def cores(monkeypatch: pytest.MonkeyPatch, own: int, of: int) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(own)))
    monkeypatch.setattr(os, "cpu_count", lambda: of)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        *(
            ({"optimization": {"graph": {"level": level}}}, {"graph_optimization_level": expected})
            for level, expected in (
                (-1, GraphOptimizationLevel.ORT_ENABLE_BASIC),
                (0, GraphOptimizationLevel.ORT_ENABLE_ALL),
                (1, GraphOptimizationLevel.ORT_ENABLE_EXTENDED),
                (2, GraphOptimizationLevel.ORT_DISABLE_ALL),
                (7, GraphOptimizationLevel.ORT_ENABLE_ALL),
            )
        ),
        (
            {"optimization": {"priority": "PRIORITY_DEFAULT"}},
            {
                "graph_optimization_level": GraphOptimizationLevel.ORT_ENABLE_ALL,
                "intra_op_num_threads": 0,
                "inter_op_num_threads": 0,
                "enable_cpu_mem_arena": True,
                "enable_mem_pattern": True,
                "execution_mode": ExecutionMode.ORT_SEQUENTIAL,
            },
        ),
        *(
            (
                parameters(intra_op_thread_count=text, inter_op_thread_count="5"),
                {"intra_op_num_threads": threads, "inter_op_num_threads": 5},
            )
            for text, threads in (("3", 3), (" +2 threads", 2), ("-1", 0))
        ),
        (
            parameters(enable_mem_arena="OFF", enable_mem_pattern="0", execution_mode="1"),
            {"enable_cpu_mem_arena": False, "enable_mem_pattern": False, "execution_mode": ExecutionMode.ORT_PARALLEL},
        ),
    ],
)
def test_the_settings_of_a_session(
    backend: ModuleType, monkeypatch: pytest.MonkeyPatch, config: dict[str, Any], expected: dict[str, Any]
) -> None:
    cores(monkeypatch, own=8, of=8)
    options = backend.session_options(config)
    assert {name: getattr(options, name) for name in expected} == expected


def test_a_process_with_some_of_the_cores_has_a_thread_for_each(
    backend: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    cores(monkeypatch, own=2, of=8)
    assert backend.session_options({}).intra_op_num_threads == 2
    assert backend.session_options(parameters(intra_op_thread_count="5")).intra_op_num_threads == 5


class Doubling:
    def __init__(self) -> None:
        self.rows: list[int] = []

    def get_inputs(self) -> list[Any]:
        return []

    get_outputs = get_overridable_initializers = get_inputs

    def run(self, names: Sequence[str], feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
        self.rows.append(len(feeds["x"]))
        return [2 * feeds["x"] for _ in names]


@pytest.mark.parametrize(("inner", "rows"), [(0, [5]), (2, [2, 2, 1]), (5, [5]), (64, [5])])
def test_a_batch_runs_in_parts(backend: ModuleType, inner: int, rows: list[int]) -> None:
    session, x = Doubling(), np.arange(10.0).reshape(5, 2)
    answers = backend.OnnxRuntime(session, inner).run(["y", "z"], {"x": x})
    assert session.rows == rows
    assert len(answers) == 2
    for answer in answers:
        np.testing.assert_array_equal(answer, 2 * x)


@pytest.mark.parametrize(("rows", "lone"), [(1, True), (2, True), (3, False), (9, False)])
def test_only_a_small_batch_runs_where_threads_spin(backend: ModuleType, rows: int, lone: bool) -> None:
    quiet, spinning = Doubling(), Doubling()
    x = np.arange(2.0 * rows).reshape(rows, 2)
    for inner in (0, 4):
        answers = backend.OnnxRuntime(quiet, inner, spinning, 2).run(["y", "z"], {"x": x})
        np.testing.assert_array_equal(answers[0], 2 * x)
    assert (bool(spinning.rows), bool(quiet.rows)) == (lone, not lone)


def test_a_request_under_load_does_not_run_where_threads_spin(
    backend: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    quiet, spinning, seconds = Doubling(), Doubling(), iter([1.0, 1.0, 1.0002, 1.001, 1.002, 1.002])
    monkeypatch.setattr(backend, "perf_counter", lambda: next(seconds))
    engine = backend.OnnxRuntime(quiet, 0, spinning, 1)
    for _ in range(3):  # first, 0.2 ms and 1 ms after a run
        engine.run(["y"], {"x": np.zeros((1, 2))})
    assert (len(spinning.rows), len(quiet.rows)) == (2, 1)


@pytest.mark.parametrize("spins", [False, True])
def test_threads_wait_busily_only_where_asked_for(backend: ModuleType, spins: bool) -> None:
    told = backend.session_options({}, spins).get_session_config_entry
    assert told("session.intra_op.allow_spinning") == str(int(spins))


@pytest.mark.parametrize(
    ("text", "size", "kind", "expected"), [("64", 8, "CPU", 64), ("64", 0, "CPU", 0), ("64", 8, "GPU", 0)]
)
def test_parts_need_a_batch_and_a_cpu(backend: ModuleType, text: str, size: int, kind: str, expected: int) -> None:
    config = parameters(inner_batch=text, lone_rows=text) | {"max_batch_size": size}
    assert [backend.row_count(config, name, kind) for name in ("inner_batch", "lone_rows")] == [expected, expected]


GPU = {
    "optimization": {
        "execution_accelerators": {"gpu_execution_accelerator": [{"name": "cuda", "parameters": {"use_tf32": "0"}}]}
    }
}


def test_a_model_for_a_gpu_gets_cuda_or_is_refused(backend: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    assert backend.providers(GPU, "CPU", "0") == ["CPUExecutionProvider"]
    with pytest.raises(
        backend.ModelRefused, match=r"expected an ONNX Runtime with CUDA for KIND_GPU, found .* for CPUs"
    ):
        backend.providers(GPU, "GPU", "0")
    loaded: list[str] = []
    monkeypatch.setattr(backend.ort, "preload_dlls", lambda: loaded.append("CUDA"))
    monkeypatch.setattr(backend.ort, "get_available_providers", lambda: [backend.CUDA, "CPUExecutionProvider"])
    ((provider, options),) = backend.providers(GPU, "GPU", "3")
    assert (provider, options, loaded) == (backend.CUDA, {"device_id": "3", "use_tf32": "0"}, ["CUDA"])
    assert backend.providers({}, "GPU", "0")[0][1]["use_tf32"] == "1", "ONNX Runtime's default"


def test_a_session_that_fell_back_to_the_cpu_is_refused(backend: ModuleType) -> None:
    backend.check_provider([backend.CUDA, "CPUExecutionProvider"], "GPU")
    with pytest.raises(backend.ModelRefused, match="expected CUDAExecutionProvider for KIND_GPU, found CPUExec"):
        backend.check_provider(["CPUExecutionProvider"], "GPU")
