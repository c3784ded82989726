"""A short run of the benchmark of the rewrites: every row, its work, its share of the machine's rate."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks import rewrites as module
from benchmarks import ways
from benchmarks.rewrites import rewrites
from benchmarks.ways import Way, runner


@pytest.mark.slow
def test_a_short_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ways, "MICRO_BATCHES", (128,))
    monkeypatch.setattr(module, "ROWS", (("vitbn", "torch"), ("vitbn", "onnx-optimized"), ("cnn", "torch")))
    path = tmp_path / "rewrites.json"
    arguments = ["--depth", "1", "--images", "2560", "--seconds", "1", "--json", str(path)]
    result = CliRunner().invoke(rewrites, arguments)
    assert result.exit_code == 0, result.output
    assert "all rewrites" in result.output
    (written,) = json.loads(path.read_text())["results"]
    rows = {row["name"]: row for row in written["rows"]}
    assert set(rows) == {
        "2048^3 in PyTorch",
        "2048^3 in ONNX Runtime",
        *(
            f"{name} {kind}"
            for name in ("vitbn torch", "vitbn onnx-optimized", "cnn torch")
            for kind in ("whole", "best")
        ),
    }
    assert rows["vitbn torch whole"]["macs"] == 2_853_504
    assert rows["vitbn onnx-optimized best"]["macs"] == 117_376
    assert rows["vitbn onnx-optimized whole"]["p50_ms"] < rows["vitbn torch whole"]["p50_ms"]
    assert rows["vitbn onnx-optimized whole"]["peak_one_call_mb"] < rows["vitbn torch whole"]["peak_one_call_mb"]
    for row in rows.values():
        assert row["gflops_per_s"] == pytest.approx(row["flops"] / row["p50_ms"] / 1e6)


@pytest.mark.parametrize("way", [Way(100, 1), Way(32, 2), Way(5000, 1)])
def test_every_way_classifies_every_image_once(way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    import numpy as np

    seen: list[int] = []
    monkeypatch.setattr("benchmarks.contestants.start", lambda *arguments: lambda batch: seen.extend(batch.tolist()))
    runner(b"", way, np.arange(1000))()
    assert sorted(seen) == list(range(1000))
