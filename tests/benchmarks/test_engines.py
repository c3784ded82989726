"""The comparison of engines: a row for each at each size, and the requests of a backend together and one by one."""

import json
from pathlib import Path

from click.testing import CliRunner

from benchmarks.engines import ORT, REQUESTS, SIZES, engines
from export.openvino_engine import has_bfloat16


def test_every_contestant_is_timed_and_judged(tmp_path: Path) -> None:
    path = tmp_path / "engines.json"
    options = ["--model", "vitbn-tiny", "--dataset", "digits", "--seconds", "1", "--json", str(path)]
    result = CliRunner().invoke(engines, options)
    assert result.exit_code == 0, result.output
    found = json.loads(path.read_text())
    names = [ORT, "OpenVINO, float32", *(["OpenVINO, bfloat16"] if has_bfloat16() else [])]
    assert list(found["accuracies"]) == names
    assert found["accuracies"]["OpenVINO, float32"] == found["accuracies"][ORT] > 0.5  # trained on MNIST, not on these
    timed = [row["name"] for row in found["rows"]]
    assert timed[: len(SIZES) * len(names)] == [f"{name}, {size} a call" for size in SIZES for name in names]
    ways = [f"{count} requests {how}" for count in REQUESTS for how in ("together", "one by one")]
    assert timed[len(SIZES) * len(names) :] == ways
    assert all(0 < row["p50_ms"] <= row["p90_ms"] for row in found["rows"])
