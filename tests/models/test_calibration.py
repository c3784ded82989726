from dataclasses import replace

import pooch
import pytest
import torch
import torch.nn.functional as F
import trainings
from commands import failure, ok

from models.calibrate import calibrate
from models.checkpoints.checkpoint import CheckpointError, add_metrics, load, save
from models.data import DataError, load_again, load_dataset
from models.evaluation.accuracy_and_calibration import (
    FEWEST,
    LIMITS,
    calibration_error,
    fit_temperature,
    measure_calibration,
)
from models.networks.registry import build

TINY = replace(trainings.TINY, model="vit")
OPTIONS = replace(trainings.OPTIONS, epochs=2, hold_out=400)
KEYS = ["temperature", "calibration_error", "calibration_error_before", "evidence_limit"]
KEYS += ["rejected_held_out", "rejected_drawings"]


def drawn(temperature, count=20_000):
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(count, 10, generator=generator)
    return logits, torch.multinomial((logits / temperature).softmax(1), 1, generator=generator)[:, 0]


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.5])
def test_temperature_comes_back(temperature):
    logits, labels = drawn(temperature)
    fitted = fit_temperature(logits, labels)
    assert fitted == pytest.approx(temperature, rel=0.03)
    least = F.cross_entropy(logits / fitted, labels)
    assert all(F.cross_entropy(logits / (fitted * wrong), labels) > least for wrong in (0.95, 1.05))
    assert calibration_error(logits, labels, fitted) < 0.02
    assert calibration_error(logits, labels, 1.5 * fitted) > 0.05, "a wrong temperature shows"


def test_temperature_keeps_its_limits():
    """Without right answers the best temperature is infinity."""
    assert fit_temperature(0.2 * torch.eye(10), torch.arange(10).roll(1)) == pytest.approx(LIMITS[1], rel=0.01)
    assert fit_temperature(0.01 * torch.eye(1000), torch.arange(1000)) == pytest.approx(LIMITS[0], rel=0.01)


@pytest.mark.parametrize(("count", "classes"), [(2, 2), (10, 10), (200, 5)])
def test_few_images_without_a_mistake_make_no_answer_certain(count, classes):
    logits = torch.eye(classes)[torch.arange(count) % classes]
    fitted = fit_temperature(logits, torch.arange(count) % classes)
    assert (logits / fitted).softmax(1).max().item() == pytest.approx((count + 1) / (count + 2), abs=1e-3)


def test_error_is_the_formula():
    confidence = torch.tensor(
        [0.99, 0.95, 0.61, 0.64, 0.66], dtype=torch.float64
    )  # two bins: from 14/15, and 9/15 to 10/15
    logits = torch.stack((confidence.log(), (1 - confidence).log()), dim=1)
    labels = torch.tensor([0, 1, 0, 0, 0])
    expected = (abs(1 - 1.94) + abs(3 - 1.91)) / 5
    assert calibration_error(logits, labels) == pytest.approx(expected, abs=1e-12)
    certain = 1000 * torch.eye(4)
    assert calibration_error(certain, torch.arange(4)) == 0
    assert calibration_error(certain, torch.tensor([0, 1, 3, 2])) == 0.5


@pytest.fixture(scope="module")
def digits():
    return trainings.first_digits(800)


@pytest.fixture
def trained(tmp_path, digits):
    path = tmp_path / "tiny.safetensors"
    trainings.run(path, digits, OPTIONS, TINY)
    return path


def test_training_stores_temperature_and_errors(trained, digits):
    metrics = load(trained).metrics
    measured = measure_calibration(load(trained).model, digits, OPTIONS.hold_out)
    assert [*measured] == KEYS
    assert {name: metrics[name] for name in KEYS} == pytest.approx(measured, rel=1e-6), (
        "all rows, and the CLS row alone"
    )
    assert LIMITS[0] <= metrics["temperature"] <= LIMITS[1]


def raw(path):
    content = path.read_bytes()
    return content[8 + int.from_bytes(content[:8], "little") :]


def test_command_adds_them_and_keeps_the_rest(tmp_path, small_mnist):
    model, options = build(TINY), {"hold_out": 60}
    metrics = {"dataset": "mnist", "options": options, "test_accuracy": 0.5}
    path = tmp_path / "old.safetensors"
    save(path, model, TINY, metrics)
    before, weights = load(path), raw(path)
    result = ok(calibrate, path, "--data-dir", small_mnist)
    after = load(path)
    assert raw(path) == weights
    assert after.config == before.config
    assert {name: value for name, value in after.metrics.items() if name not in KEYS} == metrics
    assert result.output.splitlines()[1].split()[:2] == ["old.safetensors", f"{after.metrics['temperature']:.4f}"]


def test_few_held_out_images_fit_nothing(tmp_path, digits):
    path, few = tmp_path / "few.safetensors", FEWEST - 1
    trainings.run(path, digits, replace(OPTIONS, epochs=1, hold_out=few), TINY)
    assert not {*KEYS} & {*load(path).metrics}
    add_metrics(path, {"dataset": "digits"})
    before = path.read_bytes()
    said = f"expected 20 held-out images or more to fit a temperature, found {few}; train with --hold-out 20"
    assert said in failure(calibrate, path)[0]
    assert path.read_bytes() == before


def test_the_folder_of_the_dataset_is_remembered(tmp_path, small_mnist, monkeypatch):
    """An explicit folder comes first; a folder that is gone is forgotten."""
    monkeypatch.delenv("MNIST_DIR", raising=False)
    monkeypatch.setattr(pooch, "os_cache", lambda project: tmp_path / project)
    data, path = load_dataset("mnist", small_mnist), tmp_path / "tiny.safetensors"
    trainings.run(path, data, replace(OPTIONS, epochs=1, hold_out=60), TINY)
    assert load(path).metrics["data_dir"] == str(small_mnist.absolute())
    ok(calibrate, path)
    assert (
        f"{tmp_path}/elsewhere: expected train-images"
        in failure(calibrate, path, "--data-dir", tmp_path / "elsewhere")[0]
    )
    metrics = load(path).metrics | {"data_dir": str(tmp_path / "gone")}
    with pytest.raises(
        DataError, match=r"mnist: expected its four idx files in --data-dir, MNIST_DIR or .*, found none"
    ):
        load_again(metrics, None, fetch=False)


def test_metrics_of_another_file(tmp_path):
    torch.save({}, tmp_path / "x.pth")
    with pytest.raises(CheckpointError, match=r"x\.pth: expected safetensors"):
        add_metrics(tmp_path / "x.pth", {})
