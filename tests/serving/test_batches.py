from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from serving.backends.batching import Array, Call, EqualShapes, RunFailed, answer
from serving.backends.config_check import Tensor

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


class Greedy(Doubler):
    """Has memory for two numbers."""

    def run(self, names: Sequence[str], feeds: Mapping[str, Array]) -> list[Array]:
        if feeds["x"].size > 2:
            raise MemoryError
        return super().run(names, feeds)


def test_a_request_without_memory_concerns_only_itself() -> None:
    assert answers(Greedy(), [[1]], [[2]], [[3]]) == [[[2]], [[4]], [[6]]]
    assert answers(Greedy(), [[1]], [[2], [3], [4]]) == [[[2]], "expected enough memory"]


@pytest.fixture
def engine() -> Doubler:
    return Doubler()


def answers(engine: Any, *values: list[Any], batched: bool = True) -> list[Any]:
    calls = [Call({"x": np.array(value)}, frozenset({"y"})) for value in values]
    found = answer(engine, ["y"], calls, EqualShapes() if batched else None)
    return [str(each) if isinstance(each, RunFailed) else each["y"].tolist() for each in found]


@pytest.mark.parametrize(
    ("values", "expected", "runs"),
    [
        (([[1, 2]], [[3, 4], [5, 6]]), [[[2, 4]], [[6, 8], [10, 12]]], 1),
        (([[1, 2]], [[3]], [[4, 5]]), [[[2, 4]], [[6]], [[8, 10]]], 2),
        # A batch that fails runs one by one.
        (([[-1]], [[2]], [[3]]), ["negative", [[4]], [[6]]], 4),
        (([[1]], [[-1]], [[3]]), [[[2]], "negative", [[6]]], 4),
        (([[1]], [[2]], [[-1]]), [[[2]], [[4]], "negative"], 4),
        # Width 2 together; width 1 together, then each alone.
        (([[1, 1]], [[-1]], [[2, 2]], [[3]]), [[[2, 2]], "negative", [[4, 4]], [[6]]], 4),
    ],
)
def test_equal_shapes_run_together_and_the_order_stays(
    engine: Doubler, values: tuple[Any, ...], expected: list[Any], runs: int
) -> None:
    assert answers(engine, *values) == expected
    assert engine.runs == runs


def test_without_batches_each_request_runs_alone(engine: Doubler) -> None:
    assert answers(engine, [1, 2], [3, -4], [5, 6], batched=False) == [[2, 4], "negative", [10, 12]]
    assert engine.runs == 3


def test_each_request_gets_the_outputs_it_asks_for(engine: Doubler) -> None:
    x = {"x": np.array([[1]])}
    found = answer(engine, ["y", "z"], [Call(x, frozenset({"z"})), Call(x, frozenset({"y", "z"}))], EqualShapes())
    assert [list(each) for each in found if isinstance(each, dict)] == [["z"], ["y", "z"]]
    assert engine.runs == 1


def test_output_of_another_length_is_an_error(engine: Doubler, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "run", lambda names, feeds: [feeds["x"][:-1]])
    assert answers(engine, [[1], [2]]) == ["output 'y' has 1 row for a batch of 2"]
    assert answers(engine, [[1], [2], [3]]) == ["output 'y' has 2 rows for a batch of 3"]
