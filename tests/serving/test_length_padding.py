"""Requests of different lengths run together, and each gets its own rows, cut to its own length."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from serving.backends import length_padding
from serving.backends.batching import Array, Call, RunFailed, answer
from serving.backends.config_check import Tensor
from serving.backends.length_padding import LengthPadding

TOKENS = {"ids": Tensor("TYPE_INT64", (-1, -1)), "mask": Tensor("TYPE_INT64", (-1, -1))}


class Adder:
    """sum (texts, 1): of the ids that the mask shows. doubled (texts, tokens): ids times two. Fails on id 13."""

    inputs: Mapping[str, Tensor] = TOKENS
    outputs: Mapping[str, Tensor] = {"sum": Tensor("TYPE_INT64", (-1, 1)), "doubled": TOKENS["ids"]}

    def __init__(self) -> None:
        self.shapes: list[tuple[int, ...]] = []

    def run(self, names: Sequence[str], feeds: Mapping[str, Array]) -> list[Array]:
        self.shapes.append(feeds["ids"].shape)
        if (feeds["ids"] == 13).any():
            raise RunFailed("thirteen")
        made = {"sum": (feeds["ids"] * feeds["mask"]).sum(axis=1, keepdims=True), "doubled": feeds["ids"] * 2}
        return [made[name] for name in names]


def lengths(**changed: Any) -> LengthPadding:
    return LengthPadding(
        **{"mask": "mask", "inputs": ("ids", "mask"), "outputs": ("doubled",), "left": False, "features": 2, **changed}
    )


def ask(engine: Adder, joining: LengthPadding, *requests: tuple[Any, Any]) -> list[Any]:
    calls = [
        Call({"ids": np.array(ids), "mask": np.array(mask)}, frozenset({"sum", "doubled"})) for ids, mask in requests
    ]
    found = answer(engine, ["sum", "doubled"], calls, joining)
    return [
        str(each) if isinstance(each, RunFailed) else (each["sum"].tolist(), each["doubled"].tolist()) for each in found
    ]


# left, requests of ids and mask, their sums and doubled ids, the shapes that ran
ONE, THREE = ([[3]], [[1]]), ([[4, 5, 6]], [[1, 1, 1]])
CASES: dict[str, tuple[bool, list[Any], list[Any], list[Any]]] = {
    **{
        f"padded on the {side}": (
            side == "left",
            [([[1, 2, 3]], [[1, 1, 1]]), ([[4]], [[1]]), ([[5, 6], [7, 8]], rows)],
            [([[6]], [[2, 4, 6]]), ([[4]], [[8]]), (sums, [[10, 12], [14, 16]])],
            [(4, 3)],
        )
        for side, rows, sums in (("right", [[1, 0], [1, 1]], [[5], [15]]), ("left", [[0, 1], [1, 1]], [[6], [15]]))
    },
    # Padding might change these texts.
    "nothing is shown": (
        False,
        [([[1, 2]], [[0, 0]]), ONE, THREE],
        [([[0]], [[2, 4]]), ([[3]], [[6]]), ([[15]], [[8, 10, 12]])],
        [(1, 2), (2, 3)],
    ),
    "the first token is hidden": (
        False,
        [([[1, 2]], [[0, 1]]), ONE, THREE],
        [([[2]], [[2, 4]]), ([[3]], [[6]]), ([[15]], [[8, 10, 12]])],
        [(1, 2), (2, 3)],
    ),
    "a hole in the mask": (
        False,
        [([[1, 2, 3]], [[1, 0, 1]]), ONE, ([[1, 2, 3]], [[1, 0, 1]])],
        [([[4]], [[2, 4, 6]]), ([[3]], [[6]]), ([[4]], [[2, 4, 6]])],
        [(1, 1), (2, 3)],
    ),
    "two of them": (
        False,
        [([[1, 2]], [[0, 1]]), ([[1, 2, 3]], [[1, 0, 1]])],
        [([[2]], [[2, 4]]), ([[4]], [[2, 4, 6]])],
        [(1, 2), (1, 3)],
    ),
    "a failure": (
        False,
        [([[1]], [[1]]), ([[13, 1]], [[1, 1]]), ([[1, 1, 1]], [[1, 1, 1]])],
        [([[1]], [[2]]), "thirteen", ([[3]], [[2, 2, 2]])],
        [(1, 1), (1, 2), (1, 3), (3, 3)],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_requests_of_different_lengths_run_together_and_get_their_own_outputs(name: str) -> None:
    left, requests, expected, shapes = CASES[name]
    engine = Adder()
    assert ask(engine, lengths(left=left), *requests) == expected
    assert sorted(engine.shapes) == shapes


def test_a_malformed_request_fails_alone() -> None:
    """Two of unequal lengths, whose fault the engine tells, and a request without its first axis."""
    bad = {"ids": np.array([[1, 2, 3]]), "mask": np.array([[1, 1]])}
    flat = {"ids": np.array([1, 2, 3]), "mask": np.array([1, 1, 1])}
    good = {"ids": np.array([[1, 2]]), "mask": np.array([[1, 1]])}
    longer = {"ids": np.array([[1, 2, 3, 4]]), "mask": np.array([[1, 1, 1, 1]])}
    assert lengths().groups([bad, good, flat, bad, longer]) == [[0], [2], [3], [1, 4]]


def test_a_long_text_is_not_joined_by_many_short_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mask of an attention has the square of a text's tokens."""
    monkeypatch.setattr(length_padding, "MOST_PADDED", 400)
    texts = [{"ids": np.ones((1, n), int), "mask": np.ones((1, n), int)} for n in (2, 2, 2, 2, 18)]
    assert lengths().groups(texts) == [[0, 1, 2, 3], [4]]


def test_requests_without_tokens_or_texts_are_answered() -> None:
    none = {"ids": np.zeros((1, 0), np.int64), "mask": np.zeros((1, 0), np.int64)}
    empty = {"ids": np.zeros((0, 3), np.int64), "mask": np.zeros((0, 3), np.int64)}
    some = {"ids": np.ones((1, 2), np.int64), "mask": np.ones((1, 2), np.int64)}
    joining = lengths()
    calls = [Call(each, frozenset({"sum", "doubled"})) for each in (none, empty, some)]
    found = answer(Adder(), ["sum", "doubled"], calls, joining)
    assert [each["doubled"].shape for each in found if isinstance(each, dict)] == [(1, 0), (0, 3), (1, 2)]


def test_padded_tensors_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two numbers a token: short texts stay together, a long text joins them only below the bound."""
    monkeypatch.setattr(length_padding, "MOST_PADDED", 60)
    engine = Adder()
    requests = [(np.ones((1, n), int), np.ones((1, n), int)) for n in (2, 100, 3, 10, 2)]
    found = ask(engine, lengths(), *requests)
    assert [each[0] for each in found] == [[[2]], [[100]], [[3]], [[10]], [[2]]]
    assert engine.shapes == [(3, 3), (1, 10), (1, 100)]
    assert all(rows * tokens * 2 <= 60 for rows, tokens in engine.shapes if rows > 1)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"mask": "ids2"}, "mask 'ids2'"),
        ({"left": "yes"}, "left 'yes'"),
        ({"features": 0}, "features 0"),
        ({"outputs": [1]}, r"outputs \(1,\)"),
        ({"other": 1}, "unexpected keyword argument 'other'"),
        ({"inputs": None}, "'NoneType' object is not iterable"),
    ],
)
def test_a_bad_parameter_is_refused(changed: dict[str, Any], said: str) -> None:
    assert LengthPadding.from_json(lengths(left=True).to_json()) == lengths(left=True)
    held = json.loads(lengths().to_json()) | changed
    with pytest.raises((ValueError, TypeError), match=said):
        LengthPadding.from_json(json.dumps(held))
    for text, other in (("", "Expecting value"), ("[]", "list indices"), ("{}", "inputs"), ("1", "not subscriptable")):
        with pytest.raises((ValueError, TypeError, KeyError), match=other):
            LengthPadding.from_json(text)
