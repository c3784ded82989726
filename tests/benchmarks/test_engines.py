from pathlib import Path

import pytest
from commands import measured

from benchmarks.measure.engines import ORT
from benchmarks.presets.engines import REQUESTS, SIZES, engines
from export.engines.openvino_engine import has_bfloat16


@pytest.mark.slow
def test_every_candidate_is_timed_and_judged(tmp_path: Path) -> None:
    options = ("--model", "vitbn-tiny", "--dataset", "digits", "--seconds", 1)
    _, written = measured(engines, tmp_path / "engines.json", *options)
    names = [ORT, "OpenVINO, float32", *(["OpenVINO, bfloat16"] if has_bfloat16() else [])]
    accuracies = {row["name"].rpartition(", ")[0]: row["accuracy"] for row in written["rows"] if row["accuracy"]}
    assert list(accuracies) == names
    assert accuracies["OpenVINO, float32"] == accuracies[ORT] > 0.5  # trained on MNIST, not on these
    timed = [row["name"] for row in written["rows"]]
    assert timed[: len(SIZES) * len(names)] == [f"{name}, {size} a call" for size in SIZES for name in names]
    together = [f"{count} requests {how}" for count in REQUESTS for how in ("together", "one by one")]
    assert timed[len(SIZES) * len(names) :] == together
    assert all(0 < row["p50_ms"] <= row["p90_ms"] for row in written["rows"])
