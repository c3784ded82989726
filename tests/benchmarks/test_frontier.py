import json
import shutil
from dataclasses import replace
from pathlib import Path

import click
import pytest
from commands import measured
from random_networks import saved

from benchmarks.measure import checkpoint_speeds, workload_settings
from benchmarks.measure.interleaved_timing import MIN_ROUNDS
from benchmarks.presets.frontier import comparable, frontier
from models.catalog import PRETRAINED, shipped
from models.networks.config import ModelConfig

TINY = ModelConfig(dim=16, depth=1, heads=4, dim_head=16, mlp_dim=24)  # other tests export it too
METRICS = {"dataset": "mnist", "test_images": 10_000, "test_accuracy": 0.99}


def write(path: Path, config: ModelConfig, metrics: dict[str, object] = METRICS) -> None:
    saved(path, config, metrics)


@pytest.mark.slow
def test_a_short_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workload_settings, "MICRO_BATCHES", (128,))
    monkeypatch.setattr(checkpoint_speeds, "IMAGES", 500)
    write(tmp_path / "shipped/tiny.safetensors", TINY)
    shutil.copy(shipped("vitbn-tiny"), tmp_path / "shipped/wide.safetensors")
    write(tmp_path / "runs/tiny-again.safetensors", TINY, METRICS | {"test_accuracy": 0.1})
    write(tmp_path / "runs/dfn.safetensors", replace(TINY, model="vit-dfn"))
    folders = ("--checkpoints", tmp_path / "shipped", "--checkpoints", tmp_path / "runs")
    _, written = measured(frontier, tmp_path / "out.json", *folders, "--seconds", 1)
    assert str(tmp_path) not in json.dumps(written)
    assert written["machine"]["packages"]["onnxruntime"]
    rows = {row["checkpoint"]: row for row in written["rows"]}
    assert set(rows) == {"shipped/tiny.safetensors", "shipped/wide.safetensors", "runs/dfn.safetensors"}
    for row in rows.values():
        assert row["images_per_s"] == pytest.approx(500_000 / row["p50_ms"])
        assert len(row["samples_ns"]) == len(written["rows"][0]["samples_ns"]) >= MIN_ROUNDS
        assert row["max_abs_error"] < 1e-4
    assert rows["shipped/wide.safetensors"]["images_per_s"] < rows["shipped/tiny.safetensors"]["images_per_s"]
    speeds = [row["images_per_s"] for row in written["rows"]]
    assert speeds == sorted(speeds)


def test_checkpoints_of_one_dataset_out_of_a_mixed_folder(tmp_path: Path) -> None:
    for number, dataset in enumerate(("mnist", "fashion-mnist", "fashion-mnist"), 1):
        config = replace(TINY, dim=16 * number)
        write(tmp_path / f"{number}.safetensors", config, METRICS | {"dataset": dataset})
    assert [checkpoint.path.stem for checkpoint in comparable([tmp_path], "fashion-mnist")] == ["2", "3"]
    with pytest.raises(click.ClickException, match=f"{tmp_path}: expected checkpoints of cifar10, found none"):
        comparable([tmp_path], "cifar10")
    assert {checkpoint.metrics["dataset"] for checkpoint in comparable([PRETRAINED])} == {"mnist"}
