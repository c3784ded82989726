"""The preset texts: all ways to serve texts answer alike, and the rate of each way is measured."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from perf_analyzer_windows import without_gaps

from benchmarks.drills.mixed_texts import POOLED, WORDS, write_encoder
from benchmarks.load.published_candidates import WrongAnswer
from benchmarks.measure.foreign_networks import IDS, MASK
from benchmarks.measure.padding_strategies import (
    CUT,
    INT8_CUT,
    INT8_TOLERANCE,
    PACKED,
    PADDED,
    TOLERANCE,
    int8_files,
    packed_files,
)
from benchmarks.measure.result_file import Run
from benchmarks.presets import texts
from benchmarks.reporting.tables.foreign import texts as table
from export.compiler.proof.runner import Runner
from export.compiler.proof.tolerances import relative_error

pytestmark = [pytest.mark.live, pytest.mark.slow]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    folder = tmp_path_factory.mktemp("texts")
    model = onnx.load(write_encoder(folder))
    outputs = [output for output in model.graph.output if output.name == POOLED]
    del model.graph.output[:]
    model.graph.output.extend(outputs)
    onnx.save(model, folder / "plain.onnx")
    return packed_files(folder / "plain.onnx", folder)


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(texts, "WORDS", WORDS)
    monkeypatch.setattr(texts, "lengths", lambda: {"short texts": np.array([3, 9, 20, 4, 60, 5])})


def test_each_way_has_a_rate_relative_to_the_padded_file(files: Mapping[str, Path]) -> None:
    _, (rows,) = without_gaps(lambda seconds: [*texts.measure(files, in_flight=4, seconds=seconds, rounds=1)])
    assert [row["candidate"] for row in rows] == list(texts.WAYS)
    assert all(row["texts_per_s"] > 0 and row["p50_ms"] <= row["p99_ms"] for row in rows)
    assert (rows[0]["rate_of_padded_joined"], rows[0]["texts"], rows[0]["longest_tokens"]) == ([1.0], 6, 60)
    printed = table(Run("x", None, None, {}, None, rows)).rows
    assert [row["served"] for row in printed] == list(texts.WAYS)
    assert printed[0]["x texts/s"] == "1"


def test_a_way_that_answers_otherwise_is_not_measured(files: Mapping[str, Path], tmp_path: Path) -> None:
    model = onnx.load(files[PACKED])
    weight = next(tensor for tensor in model.graph.initializer if tensor.name.endswith("words.weight"))
    weight.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weight) * np.float32(1.01), weight.name))
    onnx.save(model, tmp_path / "wrong.onnx")
    shutil.copy(files[PACKED].with_suffix(".npz"), tmp_path / "wrong.npz")
    wrong = {PADDED: files[PADDED], PACKED: tmp_path / "wrong.onnx", CUT: files[CUT]}
    with pytest.raises(WrongAnswer, match="packed, one text a call: expected answers within"):
        next(texts.measure(wrong, in_flight=4, seconds=1, rounds=1))


def test_int8_is_on_top_of_the_packed_file(files: Mapping[str, Path], tmp_path: Path) -> None:
    """The products of a packed file are in a loop, which ONNX Runtime quantises only by an option."""
    quantised = int8_files(files, tmp_path)
    text = {IDS: np.array([[5, 8, 2], [7, 0, 0]]), MASK: np.array([[1, 1, 1], [1, 0, 0]])}
    expected, answer = (Runner(file)(text)[POOLED] for file in (files[PADDED], quantised[INT8_CUT]))
    assert TOLERANCE < relative_error(expected, answer) < INT8_TOLERANCE
