"""The session options that the backend makes of config.pbtxt are those of Triton's native backend."""

from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
from backends import imported
from onnxruntime import ExecutionMode, GraphOptimizationLevel


@pytest.fixture
def backend() -> Iterator[ModuleType]:
    with imported("onnxruntime") as module:
        yield module


def parameters(**values: str) -> dict[str, Any]:
    return {"parameters": {key: {"string_value": value} for key, value in values.items()}}


@pytest.mark.parametrize(
    ("level", "expected"),
    [
        (-1, GraphOptimizationLevel.ORT_ENABLE_BASIC),
        (0, GraphOptimizationLevel.ORT_ENABLE_ALL),
        (1, GraphOptimizationLevel.ORT_ENABLE_EXTENDED),
        (2, GraphOptimizationLevel.ORT_DISABLE_ALL),
        (7, GraphOptimizationLevel.ORT_ENABLE_ALL),
    ],
)
def test_graph_level(backend: ModuleType, level: int, expected: GraphOptimizationLevel) -> None:
    options = backend.session_options({"optimization": {"graph": {"level": level}}})
    assert options.graph_optimization_level == expected


def test_defaults(backend: ModuleType) -> None:
    options = backend.session_options({"optimization": {"priority": "PRIORITY_DEFAULT"}})
    assert options.graph_optimization_level == GraphOptimizationLevel.ORT_ENABLE_ALL
    assert (options.intra_op_num_threads, options.inter_op_num_threads) == (0, 0)
    assert (options.enable_cpu_mem_arena, options.enable_mem_pattern) == (True, True)
    assert options.execution_mode == ExecutionMode.ORT_SEQUENTIAL


@pytest.mark.parametrize(("text", "expected"), [("3", 3), (" +2 threads", 2), ("-1", 0)])
def test_threads(backend: ModuleType, text: str, expected: int) -> None:
    options = backend.session_options(parameters(intra_op_thread_count=text, inter_op_thread_count="5"))
    assert (options.intra_op_num_threads, options.inter_op_num_threads) == (expected, 5)


def test_memory_and_mode(backend: ModuleType) -> None:
    options = backend.session_options(parameters(enable_mem_arena="OFF", enable_mem_pattern="0", execution_mode="1"))
    assert (options.enable_cpu_mem_arena, options.enable_mem_pattern) == (False, False)
    assert options.execution_mode == ExecutionMode.ORT_PARALLEL


def test_parameters_of_others_are_ignored(backend: ModuleType) -> None:
    backend.session_options(parameters(model_config='{"depth": 6}', rewrites="fold"))
