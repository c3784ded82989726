"""A short run of the benchmark: its table, its JSON, and a planted wrong runtime that is caught before it is timed."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks import contestants
from benchmarks.latency import COMPARED, RUNTIME_NAMES, latency
from benchmarks.timing import MIN_ROUNDS
from export.graph import Served
from export.rewrites.pipeline import Step

QUICK = ("--batch", "3", "--depth", "1", "--seconds", "1", "--threads", "1", "--device", "cpu")


def test_every_model_and_runtime_at_equal_depth(tmp_path: Path) -> None:
    path = tmp_path / "latency.json"
    result = CliRunner().invoke(latency, [*QUICK, "--json", str(path)])
    assert result.exit_code == 0, result.output
    written = json.loads(path.read_text())
    assert written["environment"]["threads"] == 1
    assert written["environment"]["packages"]["torch"]
    rows = written["rows"]
    expected = {(m, r) for m in COMPARED for r in RUNTIME_NAMES} - {("cnn", "torch-sdpa")}
    assert {(row["model"], row["runtime"]) for row in rows} == expected
    for row in rows:
        assert row["depth"] == (None if row["model"] == "cnn" else 1)
        assert row["p50_ms"] <= row["p90_ms"] <= row["p99_ms"]
        assert row["images_per_s"] == pytest.approx(3000 / row["p50_ms"])
        assert len(row["samples_ns"]) == len(rows[0]["samples_ns"]) >= MIN_ROUNDS
        eager = next(r for r in rows if r["model"] == row["model"] and r["runtime"] == "torch")
        assert row["ratio_to_torch"] == pytest.approx(eager["p50_ms"] / row["p50_ms"])
    assert "ONNX Runtime, norms folded" in result.output


def test_the_runtimes_of_the_help_are_those_that_exist() -> None:
    assert tuple(contestants.RUNTIMES) == RUNTIME_NAMES


def test_a_wrong_runtime_is_an_error_and_no_row(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    real = contestants.rewrite

    def too_bright(*arguments: object) -> tuple[Served, list[Step]]:
        served, steps = real(*arguments)
        return Served(served.model, scale_folded=False), steps

    monkeypatch.setattr(contestants, "rewrite", too_bright)
    path = tmp_path / "latency.json"
    result = CliRunner().invoke(latency, [*QUICK, "--models", "vitbn", "--json", str(path)])
    assert result.exit_code == 1
    assert "vitbn onnx-folded: expected an error of at most" in result.output
    assert not path.exists()


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--models", "vit,resnet", "expected names out of vit,vitbnffn,vitbn,cnn,dnn,dnnbn, found 'resnet'"),
        ("--runtimes", "", "expected names out of torch"),
        ("--batch", "0", "0 is not in the range"),
        ("--depth", "0", "0 is not in the range"),
    ],
)
def test_bad_options(option: str, value: str, message: str) -> None:
    result = CliRunner().invoke(latency, [option, value])
    assert result.exit_code == 2
    assert message in result.output


def test_cuda_that_is_not_there_is_said() -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has a CUDA device")
    result = CliRunner().invoke(latency, ["--device", "cuda"])
    assert result.exit_code == 1
    assert "--device cuda: expected a CUDA device, found none" in result.output


@pytest.mark.gpu
def test_cuda() -> None:
    import torch

    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    arguments = ["--device", "cuda", "--batch", "64", "--seconds", "1", "--runtimes", "torch,torch-sdpa"]
    assert CliRunner().invoke(latency, arguments).exit_code == 0
