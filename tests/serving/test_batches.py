import gc
import importlib
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from backends import imported
from tiny_models import expected_logits, linear_model

from serving.backends.batching import Array, Call, RunFailed, answer
from serving.backends.contract import Tensor

X = {"x": Tensor("TYPE_INT64", (-1, -1))}


class Doubler:
    """Counts its runs; fails on a negative value."""

    inputs: Mapping[str, Tensor] = X
    outputs: Mapping[str, Tensor] = {"y": X["x"], "z": X["x"]}

    def __init__(self) -> None:
        self.runs = 0

    def run(self, names: Sequence[str], feeds: Mapping[str, Array]) -> list[Array]:
        self.runs += 1
        if (feeds["x"] < 0).any():
            raise RunFailed("negative")
        return [feeds["x"] * 2 for _ in names]


@pytest.fixture
def engine() -> Doubler:
    return Doubler()


def answers(engine: Any, *values: list[Any], batched: bool = True) -> list[Any]:
    calls = [Call({"x": np.array(value)}, frozenset({"y"})) for value in values]
    found = answer(engine, ["y"], calls, batched)
    return [str(each) if isinstance(each, RunFailed) else each["y"].tolist() for each in found]


def test_equal_shapes_run_once(engine: Doubler) -> None:
    assert answers(engine, [[1, 2]], [[3, 4], [5, 6]]) == [[[2, 4]], [[6, 8], [10, 12]]]
    assert engine.runs == 1


def test_unequal_shapes_run_apart_and_keep_their_order(engine: Doubler) -> None:
    assert answers(engine, [[1, 2]], [[3]], [[4, 5]]) == [[[2, 4]], [[6]], [[8, 10]]]
    assert engine.runs == 2


@pytest.mark.parametrize("bad", [0, 1, 2])
def test_failed_batch_is_run_one_by_one(engine: Doubler, bad: int) -> None:
    values, expected = [[[1]], [[2]], [[3]]], [[[2]], [[4]], [[6]]]
    values[bad], expected[bad] = [[-1]], "negative"
    assert answers(engine, *values) == expected
    assert engine.runs == 4


def test_failure_in_one_group_leaves_the_other_together(engine: Doubler) -> None:
    assert answers(engine, [[1, 1]], [[-1]], [[2, 2]], [[3]]) == [[[2, 2]], "negative", [[4, 4]], [[6]]]
    assert engine.runs == 4  # width 2 together; width 1 together, then each alone


def test_without_batches_each_request_runs_alone(engine: Doubler) -> None:
    assert answers(engine, [1, 2], [3, -4], [5, 6], batched=False) == [[2, 4], "negative", [10, 12]]
    assert engine.runs == 3


def test_each_request_gets_the_outputs_it_asks_for(engine: Doubler) -> None:
    x = {"x": np.array([[1]])}
    found = answer(engine, ["y", "z"], [Call(x, frozenset({"z"})), Call(x, frozenset({"y", "z"}))], batched=True)
    assert [list(each) for each in found if isinstance(each, dict)] == [["z"], ["y", "z"]]
    assert engine.runs == 1


def test_output_of_another_length_is_an_error(engine: Doubler, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "run", lambda names, feeds: [feeds["x"][:1]])
    assert answers(engine, [[1], [2]]) == ["output 'y' has 1 rows for a batch of 2"]


def onnxruntime_engine(module: Any) -> Any:
    return module.OnnxRuntime(module.ort.InferenceSession(linear_model(size="size").SerializeToString()))


def openvino_engine(module: Any) -> Any:
    core = importlib.import_module("openvino").Core()
    core.set_property("CPU", module.cpu_properties({}, bfloat16=True))
    return module.OpenVino(core.compile_model(core.read_model(linear_model(size="size").SerializeToString()), "CPU"))


@pytest.mark.parametrize(
    ("name", "make", "reason"),
    [
        ("onnxruntime", onnxruntime_engine, "cannot be reshaped to the requested shape"),
        ("openvino", openvino_engine, "(2.1.28.29) conflicts with the reshape pattern"),
    ],
)
def test_engines_answer_a_bad_request_alone_and_the_others_as_one(
    name: str, make: Callable[[Any], Any], reason: str
) -> None:
    images = np.random.default_rng(1).integers(0, 256, (5, 1, 28, 28), dtype=np.uint8)
    bad = np.zeros((2, 1, 28, 29), np.uint8)
    calls = [Call({"image": each}, frozenset({"logits"})) for each in (images[:2], bad, images[2:])]
    with imported(name) as module:
        first, failed, last = answer(make(module), ["total", "logits"], calls, batched=True)
        assert isinstance(failed, RunFailed)
        assert reason in str(failed)
        for found, part in ((first, images[:2]), (last, images[2:])):
            assert isinstance(found, dict)
            np.testing.assert_allclose(found["logits"], expected_logits(part), rtol=1e-5, atol=1e-4)


def test_finalize_frees_the_engine() -> None:
    with imported("onnxruntime") as module:
        backend = module.TritonPythonModel()
        backend.engine = onnxruntime_engine(module)
        session = weakref.ref(backend.engine.session)
        assert session() is not None
        backend.finalize()
        gc.collect()
        assert session() is None
