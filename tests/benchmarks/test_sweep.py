from pathlib import Path

import pytest
from commands import measured

from benchmarks.latency import latency
from benchmarks.measure import peak_flops_and_bandwidth
from benchmarks.presets import sweep


@pytest.mark.slow
def test_every_axis_has_its_points_and_every_idea_its_figure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = {"BATCHES": (1, 4), "DEPTH": 1, "DEPTHS": (2,), "DIMS": (32,), "AXIS_BATCH": 2}
    for name, value in (small | {"COMPARED": ("vitbn", "cnn"), "RUNTIMES": ("torch",)}).items():
        monkeypatch.setattr(sweep, name, value)
    _, written = measured(latency, tmp_path / "sweep.json", "--preset", "sweep", "--seconds", 1)
    points = {
        axis: [(row["model"], row["batch"], row["depth"], row["dim"]) for row in written["rows"] if row["axis"] == axis]
        for axis in ("batch", "depth", "dim")
    }
    cnn = [("cnn", batch, None, None) for batch in (1, 4)]
    assert points["batch"] == [("vitbn", 1, 1, 64), cnn[0], ("vitbn", 4, 1, 64), cnn[1]]
    assert (points["depth"], points["dim"]) == ([("vitbn", 2, 2, 64)], [("vitbn", 2, 1, 32)])
    macs = {row["dim"]: row["macs"] for row in written["rows"] if (row["model"], row["depth"]) == ("vitbn", 1)}
    assert macs[32] < macs[64]


def test_limits_are_rates() -> None:
    limits = peak_flops_and_bandwidth.limits("cpu", 1, ("fp32", "bf16", "int8"))
    assert limits["gemm_gflops_per_s_by_precision"].keys() == {"fp32", "bf16"}
    assert limits["gemm_gflops_per_s"] == limits["gemm_gflops_per_s_by_precision"]["fp32"] > 0
    assert limits["gemm_library"] in ("PyTorch, 128^3, float32", "ONNX Runtime, 128^3, float32")
    assert limits["copy_gb_per_s"] > 0
    assert limits["triad_gb_per_s"] > 0


def test_the_best_of_each_limit_counts() -> None:
    by_precision = "gemm_gflops_per_s_by_precision"
    first = {"gemm_gflops_per_s": 2.0, "gemm_library": "a", by_precision: {"fp32": 2.0, "bf16": 5.0}}
    second = {"gemm_gflops_per_s": 3.0, "gemm_library": "b", by_precision: {"fp32": 3.0, "bf16": 4.0}}
    times = {"copy_gb_per_s": 9.0}, {"copy_gb_per_s": 8.0}
    expected = {**second, **times[0], by_precision: {"fp32": 3.0, "bf16": 5.0}}
    assert peak_flops_and_bandwidth.better({**first, **times[0]}, {**second, **times[1]}) == expected
