"""A user's checkpoints on a user's dataset, in the three benchmarks."""

from pathlib import Path

import numpy as np
import pytest
import random_networks
import torch
from click import Command
from commands import failure, measured
from idx_files import write_idx

from benchmarks import accuracy as module
from benchmarks.accuracy import accuracy
from benchmarks.latency import latency
from benchmarks.measure.candidate import Candidate
from benchmarks.measure.engines import OPTIMISED
from benchmarks.measure.measured_network import Network
from benchmarks.throughput import throughput
from models.checkpoints.checkpoint import save
from models.data import FASHION_MNIST_LABELS
from models.data.mnist import MNIST_PARTS
from models.networks.config import ModelConfig
from models.networks.registry import build

SMALL = ModelConfig(
    depth=1,
    dim=16,
    heads=2,
    dim_head=8,
    mlp_dim=24,
    image_size=(20, 20),
    patch_size=(5, 5),
    labels=FASHION_MNIST_LABELS,
    preprocessing="photo",
)


@pytest.fixture(scope="module")
def garments(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """60 images of 20x20, of ten classes."""
    folder = tmp_path_factory.mktemp("garments")
    images = np.random.default_rng(0).integers(0, 256, (60, 20, 20), np.uint8)
    for name in MNIST_PARTS.values():
        write_idx(folder / name, np.arange(60) % 10 if "labels" in name else images)
    return folder


@pytest.fixture(scope="module")
def mine(garments: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("checkpoints") / "mine.safetensors"
    network = build(SMALL)
    network(torch.rand(60, 1, 20, 20))  # its norms see a batch
    save(path, network, SMALL, {"dataset": "fashion-mnist", "data_dir": str(garments)})
    return path


def rows(command: Command, path: Path, *options: object) -> list[dict[str, object]]:
    written: list[dict[str, object]] = measured(command, path, *options)[1]["rows"]
    return written


@pytest.mark.slow
def test_accuracy_on_the_dataset_of_its_training(mine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "EXACT", ("torch", "onnx-optimized"))
    measured_rows = rows(accuracy, tmp_path / "accuracy.json", "--checkpoint", mine)
    assert {(row["model"], row["dataset"], row["images"]) for row in measured_rows} == {("mine", "fashion-mnist", 60)}
    agreements = {row["runtime"]: row["agreement"] for row in measured_rows}
    assert agreements["ONNX Runtime, all rewrites"] == 1.0
    assert "ONNX Runtime, all rewrites, int8" in agreements


@pytest.mark.slow
def test_latency_of_a_checkpoint_alone(mine: Path, tmp_path: Path) -> None:
    options = ("--batch", 2, "--runtime", "onnx-optimized", "--precision", "fp32", "--precision", "int8")
    measured_rows = rows(latency, tmp_path / "latency.json", "--checkpoint", mine, "--seconds", 1, *options)
    assert [(row["model"], row["precision"]) for row in measured_rows] == [("mine", "fp32"), ("mine", "int8")]


@pytest.mark.live
def test_throughput_of_a_checkpoint(mine: Path, tmp_path: Path) -> None:
    options = ("--sharing", "1x1", "--batch", 1, "--in-flight", 1, "--seconds", 0.5, "--rounds", 1)
    measured_rows = rows(throughput, tmp_path / "throughput.json", "--checkpoint", mine, *options)
    assert [row["model"] for row in measured_rows] == ["mine"]


def test_another_dataset_must_fit(mine: Path, garments: Path, mnist_dir: Path) -> None:
    line, code = failure(accuracy, "--checkpoint", mine, "--dataset", "mnist", "--data-dir", mnist_dir)
    assert (code, "mnist: expected images (1, 20, 20) of 10 classes" in line) == (1, True)
    line, code = failure(accuracy, "--checkpoint", mine, "--conditions", "--dataset", "digits")
    assert (code, "--conditions: expected networks that read digits, found mine" in line) == (2, True)
    assert Network("mine", mine, True, "fashion-mnist", garments).data.folder == str(garments)


def test_a_file_of_pytorch_s_is_measured_too(tmp_path: Path) -> None:
    config = ModelConfig(model="cnn")
    torch.save(random_networks.network(config).state_dict(), tmp_path / "theirs.pth")
    assert Candidate(Network("theirs", tmp_path / "theirs.pth"), OPTIMISED).config == config
