from pathlib import Path

import numpy as np
import pytest
from commands import measured

from benchmarks.measure import rewrite_speedups, workload_settings
from benchmarks.measure.candidate import Candidate
from benchmarks.measure.engines import OPTIMISED
from benchmarks.measure.interleaved_timing import Durations
from benchmarks.measure.measured_network import shipped_network
from benchmarks.measure.rewrite_speedups import ALL, BEST, EAGER, INT8, ONE_CALL, PLAIN, passes_of, timed_rows
from benchmarks.measure.workload_settings import Workload, runner
from benchmarks.presets import rewrites as presets
from export.checkpoint_to_onnx import Form
from export.compiler.passes import PASSES


@pytest.mark.slow
def test_a_short_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workload_settings, "MICRO_BATCHES", (128,))
    monkeypatch.setattr(presets, "DEPTHS", (1,))
    monkeypatch.setattr(rewrite_speedups, "IMAGES", 256)
    monkeypatch.setattr(rewrite_speedups, "ROUNDS", 3)
    monkeypatch.setattr(rewrite_speedups, "FORMS", {"vitbn": (EAGER, PLAIN, "absorb", ALL, INT8)})
    _, written = measured(presets.rewrites, tmp_path / "rewrites.json", "--seconds", 1)
    assert {(row["at_depth"], row["images"]) for row in written["rows"]} == {(1, 256)}
    rows = {row["name"]: row for row in written["rows"]}
    forms = (EAGER, PLAIN, "absorb", ALL, INT8)
    names = {f"vitbn, {form}, {kind}" for form in forms for kind in (ONE_CALL, BEST)}
    assert set(rows) == {"128^3 in PyTorch", "128^3 in ONNX Runtime", *names}
    macs = [rows[f"vitbn, {form}, best"]["macs"] for form in forms]
    assert macs == [2_853_504, 2_853_504, 150_144, 63_360, 63_360]  # absorption leaves one query, in a single row
    for row in rows.values():
        assert row["gflops_per_s"] == pytest.approx(row["flops"] / row["p50_ms"] / 1e6)
    for name in names:
        row = rows[name]
        for other, ratio in row["ratios"].items():
            same_kind = rows[f"vitbn, {other}, {row['kind']}"]
            assert ratio["ratio"] == pytest.approx(np.median(same_kind["samples_ns"]) / np.median(row["samples_ns"]))
            assert ratio["low"] <= ratio["ratio"] <= ratio["high"]
        assert rows[name.replace(ONE_CALL, BEST)]["p50_ms"] <= row["p50_ms"]


def test_the_names_of_the_forms() -> None:
    assert passes_of(PLAIN) == ()
    together = passes_of("fold + absorb + CLS row")
    assert together == (*Form("bn").passes, "absorb-queries", "read-rows")
    assert "absorb-embedding" not in together
    assert passes_of(ALL) == passes_of(INT8) == PASSES


def test_best_is_one_call_where_that_is_quicker() -> None:
    names = [f"vitbn, {EAGER}, {kind}" for kind in (ONE_CALL, BEST)]
    rows = [
        {"name": name, "model": "vitbn", "candidate": EAGER, "kind": kind, "way": kind, "flops": 1}
        for name, kind in zip(names, (ONE_CALL, BEST), strict=True)
    ]
    one_call, best = timed_rows(rows, {names[0]: Durations((1, 1, 1)), names[1]: Durations((2, 2, 2))})
    assert best["samples_ns"] == one_call["samples_ns"] == [1, 1, 1]
    assert best["way"] == ONE_CALL


@pytest.mark.parametrize("way", [Workload(1000, 1, 100), Workload(1000, 2, 32), Workload(1000)])
def test_every_way_classifies_every_image_once(way: Workload, monkeypatch: pytest.MonkeyPatch) -> None:
    import numpy as np

    seen: list[int] = []
    monkeypatch.setattr(workload_settings, "start", lambda *arguments: lambda batch: seen.extend(batch.tolist()))
    runner(b"", Candidate(shipped_network("vitbn"), OPTIMISED), way, np.arange(1000))()
    assert sorted(seen) == list(range(1000))
