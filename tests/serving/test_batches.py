"""How the backend groups requests, with Triton's own module replaced: a real server merges equal shapes only."""

import importlib
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

BACKEND = Path(__file__).parents[2] / "serving" / "backends" / "onnxruntime"


@dataclass
class Tensor:
    tensor_name: str
    value: np.ndarray

    def name(self) -> str:
        return self.tensor_name

    def as_numpy(self) -> np.ndarray:
        return self.value


@dataclass
class Response:
    tensors: tuple[Tensor, ...] = ()
    error: str | None = None


class Doubler:
    """A session that doubles its input and counts its runs; it fails on a negative value, as a model may."""

    def __init__(self, error: type[Exception]) -> None:
        self.runs = 0
        self.error = error

    def run(self, names: list[str], feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
        self.runs += 1
        if (feeds["x"] < 0).any():
            raise self.error("negative")
        return [feeds["x"] * 2 for _ in names]


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> Any:
    utils = ModuleType("triton_python_backend_utils")
    utils.Tensor, utils.InferenceResponse, utils.TritonError = Tensor, Response, str  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", utils)
    monkeypatch.syspath_prepend(BACKEND)
    module = importlib.import_module("model")
    instance = module.TritonPythonModel()
    instance.session, instance.batched, instance.outputs = Doubler(module.ORT_ERRORS[0]), True, ["y"]
    yield instance
    for name in ("model", "onnx_contract"):
        del sys.modules[name]


def request(value: list[Any], *outputs: str) -> Any:
    return SimpleNamespace(inputs=lambda: [Tensor("x", np.array(value))], requested_output_names=lambda: list(outputs))


def answers(backend: Any, *values: list[Any]) -> list[Any]:
    responses = backend.execute([request(value, "y") for value in values])
    return [response.error or response.tensors[0].value.tolist() for response in responses]


def test_equal_shapes_run_once(backend: Any) -> None:
    assert answers(backend, [[1, 2]], [[3, 4], [5, 6]]) == [[[2, 4]], [[6, 8], [10, 12]]]
    assert backend.session.runs == 1


def test_unequal_shapes_run_apart_and_keep_their_order(backend: Any) -> None:
    assert answers(backend, [[1, 2]], [[3]], [[4, 5]]) == [[[2, 4]], [[6]], [[8, 10]]]
    assert backend.session.runs == 2


def test_failed_batch_is_run_one_by_one(backend: Any) -> None:
    assert answers(backend, [[1]], [[-1]], [[2]]) == [[[2]], "negative", [[4]]]
    assert backend.session.runs == 4


def test_without_batches_each_request_runs_alone(backend: Any) -> None:
    backend.batched = False
    assert answers(backend, [1, 2], [3, 4]) == [[2, 4], [6, 8]]
    assert backend.session.runs == 2


def test_each_request_gets_the_outputs_it_asks_for(backend: Any) -> None:
    backend.outputs = ["y", "z"]
    responses = backend.execute([request([[1]], "z"), request([[2]], "y", "z")])
    assert [[tensor.tensor_name for tensor in response.tensors] for response in responses] == [["z"], ["y", "z"]]
    assert backend.session.runs == 1


def test_output_of_another_length_is_an_error(backend: Any) -> None:
    backend.session.run = lambda names, feeds: [feeds["x"][:1]]
    assert answers(backend, [[1], [2]]) == ["output 'y' has 1 rows for a batch of 2"]
