import re

import numpy as np
import pytest
from commands import failure, measured

from benchmarks.measure import engines
from benchmarks.measure.interleaved_timing import MIN_ROUNDS
from benchmarks.measure.workload_settings import IN_PROCESS
from benchmarks.presets.added import added

QUICK = ("--model", "vitbn-tiny", "--dataset", "digits", "--seconds", 1)


@pytest.mark.live
@pytest.mark.slow
def test_a_short_run(tmp_path):
    options = ("--streamed", 5000, "--batch", 300, "--device", "cpu")
    printed, written = measured(added, tmp_path / "overhead.json", *QUICK, *options)
    about = {(row["engine"], row["precision"], row["batch_size"]) for row in written["rows"]}
    assert about == {("onnxruntime", "fp32", 300)}
    rows = {(row["images_a_call"], row["transport"]): row for row in written["rows"] if "transport" in row}
    calls = sorted({images for images, _ in rows})
    assert calls[0] == 1 < calls[1]
    assert set(rows) == {(images, way) for images in calls for way in (IN_PROCESS, "HTTP", "gRPC")}
    for (images, way), row in rows.items():
        p50_ms, alone_ms = row["p50_ms"], rows[images, IN_PROCESS]["p50_ms"]
        assert len(row["samples_ns"]) >= MIN_ROUNDS
        assert min(row["samples_ns"]) / 1e6 <= p50_ms <= max(row["samples_ns"]) / 1e6  # medians of turns
        assert row["images_per_s"] == pytest.approx(images / p50_ms * 1000)
        assert row["added_ms"] == pytest.approx(p50_ms - alone_ms)
        assert ("client_ms" in row) == (is_single_request := images == 1 and way != IN_PROCESS)
        assert not is_single_request or 0 < row["client_ms"] < 10 * row["p50_ms"]
        assert f"{row['images_per_s']:,.0f}" in printed
    assert [row["images"] for row in written["rows"] if "resident_mb" in row] == list(range(500, 5001, 500))
    assert "MB after 5,000 streamed images" in printed


@pytest.mark.live
def test_a_server_that_answers_otherwise_is_not_timed(monkeypatch, tmp_path):
    start = engines.start

    def start_another(data, *setup):
        run = start(data, *setup)
        return lambda images: run(images) + np.float32(2e-3)

    monkeypatch.setattr(engines, "start", start_another)
    line, code = failure(added, *QUICK, "--json", tmp_path / "overhead.json")
    assert code == 1
    assert re.search(r"HTTP: expected an error of at most 2.0e-05 .*, beside the logits in process", line)
    assert not list(tmp_path.iterdir())
