import json
import sys
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from commands import ok

from export.compare_logits import Classifier
from export.engines import choose_engine
from export.engines.choose_engine import Row, Setting, choose
from export.errors import Unavailable
from export.precision import AccuracyError
from export.publishing.artifact import read_version
from export.publishing.publish import read_config
from export.to_onnx import export
from models.data import Dataset

FILES = {"fp32": b"", "int8": b""}
SLOW_S, QUICK_S = 0.02, 0.001  # of a call


@pytest.fixture(autouse=True)
def few_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"CALLS": 2, "LEAST_ROUNDS": 1, "SECONDS": 0.0}.items():
        monkeypatch.setattr(choose_engine, name, value)
    monkeypatch.setattr(choose_engine, "_cores", lambda: 2)


@pytest.fixture
def zeros() -> Dataset:
    images, labels = np.zeros((8, 1, 28, 28), np.uint8), np.zeros(8, np.int64)
    return Dataset("zeros", images, labels, images, labels, ("0", "1"))


def engines(monkeypatch: pytest.MonkeyPatch, quick: Setting, wrong: str | None = None) -> None:
    """Their calls alone move the clock."""
    clock = SimpleNamespace(now_s=0.0)

    def start(files: object, setting: Setting) -> Classifier:
        def classify(images: np.ndarray) -> np.ndarray:
            clock.now_s += QUICK_S if setting == quick else SLOW_S
            logits = np.tile([1.0, 0.0], (len(images), 1))
            if setting.precision == wrong:
                logits[::4] = logits[::4, ::-1]
            return logits

        return classify

    monkeypatch.setattr(choose_engine, "_start", start)
    in_ns = SimpleNamespace(perf_counter=lambda: clock.now_s, perf_counter_ns=lambda: round(1e9 * clock.now_s))
    monkeypatch.setattr("export.interleaved.time", in_ns)


@pytest.mark.parametrize("goal", ["latency", "throughput"])
def test_the_quickest_is_chosen(goal: choose_engine.Goal, zeros: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    quick = Setting("openvino", "bf16", 1, 1) if goal == "latency" else Setting("openvino", "bf16", 2, 1)
    engines(monkeypatch, quick)
    choice = choose(FILES, zeros, goal, 0.1)
    assert choice.best.setting == quick
    assert len(choice.rows) == 10
    speeds = [row.images_per_s for row in choice.rows]
    assert speeds == sorted(speeds, reverse=True)
    assert choice.manifest()["chosen"]["precision"] == "bf16"


@pytest.mark.parametrize("lead", [0.01, 0.2])
def test_of_level_rows_the_simplest_is_chosen_and_the_reason_given(
    lead: float, zeros: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choose_engine, "_start", lambda files, setting: len)
    monkeypatch.setattr(choose_engine, "accuracy", lambda classify, dataset: 1.0)

    def samples(runs: list[object], schedule: object) -> list[list[float]]:
        noise = np.random.default_rng(0).normal(1, 0.05, (len(runs), 40))
        noise /= np.median(noise, axis=1, keepdims=True)
        noise[-1] *= 1 - lead  # OpenVINO, int8, a thread
        return noise.tolist()

    monkeypatch.setattr(choose_engine, "interleaved", samples)
    choice = choose(FILES, zeros, "latency", 0.1)
    assert choice.rows[0].setting == Setting("openvino", "int8", 1, 1)
    if lead < 0.1:
        assert choice.best.setting == choose_engine.BASELINE
        assert str(choice.reason).startswith("simpler than openvino, int8, instances: 1, threads of each: 1, and as")
    else:
        assert (choice.best, choice.reason) == (choice.rows[0], None)


def test_one_that_loses_accuracy_is_left_out_even_if_it_is_the_quickest(
    zeros: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    engines(monkeypatch, Setting("openvino", "int8"), wrong="int8")
    choice = choose(FILES, zeros, "throughput", 0.1)
    assert choice.best.setting.precision != "int8"
    reasons = {row.setting.engine: row.left_out for row in choice.rows if row.setting.precision == "int8"}
    assert reasons == dict.fromkeys(["onnxruntime", "openvino"], "accuracy falls by 25.00 points, 0.1 are allowed")
    assert choose(FILES, zeros, "throughput", 25.0).best.setting == Setting("openvino", "int8")


def test_what_is_missing_is_left_out_with_its_reason(zeros: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    engines(monkeypatch, Setting("onnxruntime", "fp32"))
    real = choose_engine._start

    def start(files: object, setting: Setting) -> Classifier:
        if setting.engine == "openvino":
            raise Unavailable("OpenVINO is not installed")
        if setting.precision == "int8":
            raise AccuracyError("int8: expected a drop")
        return real(files, setting)

    monkeypatch.setattr(choose_engine, "_start", start)
    choice = choose(FILES, zeros, "latency", 0.1)
    assert [str(row.setting) for row in choice.rows if not row.left_out] == [
        "onnxruntime, fp32, instances: 1, threads of each: all",
        "onnxruntime, fp32, instances: 1, threads of each: 1",
    ]
    assert [row.left_out for row in choice.rows[2:]] == ["int8: expected a drop", *["OpenVINO is not installed"] * 3]


def test_every_instance_makes_as_many_calls(zeros: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[list[int]] = []  # the images of each call

    def start(files: object, setting: Setting) -> Classifier:
        made.append(calls := [])
        return lambda images: calls.append(len(images))

    monkeypatch.setattr(choose_engine, "_start", start)
    seconds = count()
    monkeypatch.setattr("export.interleaved.time.perf_counter_ns", lambda: 10**9 * next(seconds))
    (row,) = choose_engine._timed(FILES, [Row(Setting("onnxruntime", "fp32", 3, 1))], zeros.test_images, "throughput")
    assert made == [[8, 8]] * 3, "a call of each to warm up, another in the round"
    assert (row.images_per_s, row.call_ms) == (24, 1000)


@pytest.mark.slow
def test_the_best_is_published_with_its_figures(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openvino", None)
    options = ("--checkpoint", trained, "--repository", tmp_path, "--backend", "auto", "--max-accuracy-drop", 5)
    result = ok(export, *options, "--for", "latency")
    assert "OpenVINO is not installed" in result.output
    assert "Chose for latency: onnxruntime, " in result.output
    origin = read_version(tmp_path / "vitbn/1").origin
    choice = origin.facts["choice"]
    assert (choice["for"], choice["max_accuracy_drop"], len(choice["measured"])) == ("latency", 5.0, 7)
    assert origin.rewrites[-1] == "tidy"
    assert origin.test_accuracy == choice["chosen"]["accuracy"] > 0.9
    config = read_config(tmp_path / "vitbn")
    assert config.parameters["intra_op_thread_count"].string_value == str(choice["chosen"]["threads"])
    assert config.instance_group[0].count == choice["chosen"]["instances"] == 1
    assert json.loads((tmp_path / "vitbn/1/manifest.json").read_text())["choice"] == choice
