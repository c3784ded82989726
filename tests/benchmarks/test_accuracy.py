from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from commands import measured

from benchmarks import accuracy as module
from benchmarks.accuracy import EXACT, accuracy
from benchmarks.measure.engines import RUNTIMES
from benchmarks.measure.image_corruptions import PENS
from export.engines.openvino_engine import has_bfloat16


def run(path: Path) -> dict[str, dict[str, float]]:
    _, written = measured(accuracy, path, "--model", "vitbn-tiny", "--dataset", "digits")
    return {row["runtime"]: row for row in written["rows"]}


@pytest.mark.slow
def test_every_runtime_and_precision(tmp_path: Path) -> None:
    rows = run(tmp_path / "accuracy.json")
    lower = [f"ONNX Runtime, all rewrites, {precision}" for precision in ("fp16", "int8")]
    openvino = ["OpenVINO, all rewrites", *(["OpenVINO, all rewrites, bfloat16"] if has_bfloat16() else [])]
    assert list(rows) == [*(RUNTIMES[name].label for name in EXACT), *lower, *openvino]
    for name, row in rows.items():
        is_exact = name not in (*lower, "OpenVINO, all rewrites, bfloat16")
        assert row["agreement"] == (1.0 if is_exact else pytest.approx(1, abs=0.05))
        assert row["max_abs_error"] < (1e-4 if is_exact else 3)
        assert row["accuracy"] > 0.5, "trained on MNIST, not on these"


@pytest.mark.slow
def test_a_wrong_runtime_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "EXACT", ("torch",))

    def wrong(*arguments: object) -> Callable[[np.ndarray], np.ndarray]:
        return lambda images: np.zeros((len(images), 10), np.float32)

    monkeypatch.setitem(RUNTIMES, "onnx-optimized", replace(RUNTIMES["onnx-optimized"], start=wrong))
    rows = run(tmp_path / "accuracy.json")
    assert rows["ONNX Runtime, all rewrites, int8"]["agreement"] < 0.2


@pytest.mark.slow
def test_conditions_of_a_shipped_network(tmp_path: Path) -> None:
    options = ("--conditions", "--model", "vit", "--model", "vitbn-tiny", "--dataset", "digits")
    printed, written = measured(accuracy, tmp_path / "conditions.json", *options)
    rows: dict[str, dict[str, float]] = {}
    for row in written["rows"]:
        rows.setdefault(row["model"], {})[row["condition"]] = row["accuracy"]
    usual = ["digits", "8x8 digits", *PENS]
    assert {name: list(shares) for name, shares in rows.items()} == {
        "vit": usual,
        "vitbn-tiny": [*usual, "8x8 digits, adapted"],  # LayerNorm has no statistics
    }
    for shares in rows.values():
        assert 0.2 < min(shares.values()) < max(shares.values()) < 1
    assert rows["vitbn-tiny"]["8x8 digits, adapted"] > rows["vitbn-tiny"]["8x8 digits"] + 0.01
    assert f"{100 * rows['vitbn-tiny']['noise 0.2']:.2f}" in printed


@pytest.mark.parametrize(("after", "verdict"), [(0.01, "fits"), (0.04, "brings nothing")])
def test_a_temperature_that_does_not_lower_the_calibration_error_brings_nothing(after: float, verdict: str) -> None:
    row = {"model": "m", "accuracy": 0.9, "images": 200, "part": "test", "temperature": 1.1}
    line = module._accuracy_line(row | {"calibration_error_before": 0.03, "calibration_error": after})
    assert line.startswith(f"m: 90.00 % of 200 pictures right; temperature 1.1 {verdict}: calibration error 3.0 -> ")
