import json
import os
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
import trainings
from random_networks import saved
from safetensors.torch import load_file
from trainings import OPTIONS, first_digits, series

from models.checkpoints.checkpoint import load
from models.networks.config import INPUT_SCALE, ModelConfig
from models.training.augmentation import augmentation
from models.training.recipe import TrainingError

CNN = ModelConfig(model="cnn")
SHORT = replace(OPTIONS, epochs=2)
run = partial(trainings.run, config=replace(trainings.TINY, dropout=0.1))


@pytest.fixture(scope="module")
def some_digits():
    return first_digits(101)


@pytest.fixture(scope="module")
def taught(tmp_path_factory):
    path = tmp_path_factory.mktemp("teacher") / "teacher.safetensors"
    return replace(SHORT, teacher=str(saved(path, CNN, seed=3)))


@pytest.fixture(scope="module")
def cached(tmp_path_factory, some_digits, taught):
    """A training that filled a folder with distorted pictures: its folder and its epochs."""
    folder = tmp_path_factory.mktemp("cached")
    options = replace(taught, augment="elastic", teacher_cache=str(folder / "epochs"))
    return folder, run(folder / "first.safetensors", some_digits, options)


@pytest.fixture
def options(tmp_path, cached, taught):
    """With a copy of that folder."""
    shutil.copytree(cached[0] / "epochs", tmp_path / "epochs")
    return replace(taught, augment="elastic", teacher_cache=str(tmp_path / "epochs"))


def test_a_folder_gives_the_network_that_the_teacher_gives(tmp_path, some_digits, taught):
    usual = run(tmp_path / "usual.safetensors", some_digits, taught)
    shared = run(tmp_path / "shared.safetensors", some_digits, replace(taught, teacher_cache=str(tmp_path / "epochs")))
    for one, other in zip(usual, shared, strict=True):
        assert other.training_loss == pytest.approx(one.training_loss, rel=1e-4), "the folder rounds to float16"
    alone = run(tmp_path / "alone.safetensors", some_digits, SHORT)
    assert alone[-1].training_loss != pytest.approx(usual[-1].training_loss, rel=1e-2), "the teacher changes the loss"


def test_another_training_reads_what_the_first_wrote(tmp_path, some_digits, cached, options):
    files = sorted((tmp_path / "epochs").glob("epoch-*"))
    written = [path.stat().st_mtime_ns for path in files]
    assert series(run(tmp_path / "second.safetensors", some_digits, options)) == series(cached[1])
    other = run(tmp_path / "other.safetensors", some_digits, replace(options, seed=1))
    assert series(other) != series(cached[1]), "another seed sees the same images in another order"
    assert [path.stat().st_mtime_ns for path in sorted((tmp_path / "epochs").glob("epoch-*"))] == written
    before = files[1].read_bytes()
    assert files[0].read_bytes() != before, "each epoch has its own distortions"
    files[1].unlink()
    run(tmp_path / "third.safetensors", some_digits, options)
    assert files[1].read_bytes() == before


def test_stored_images_are_distorted_and_answered_as_stored(some_digits, cached, taught):
    stored = load_file(cached[0] / "epochs/epoch-0001.safetensors")
    torch.manual_seed(1)
    distorted = augmentation("elastic")(torch.from_numpy(some_digits.train_images[:100]) * INPUT_SCALE)
    assert (stored["images"][:100] * INPUT_SCALE - distorted).abs().max() <= 0.51 / 255
    with torch.no_grad():
        answers = load(Path(taught.teacher)).model(stored["images"] * INPUT_SCALE).softmax(1)
    assert (stored["probabilities"].float() - answers).abs().max() < 1e-3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"augment": "light"}, "origin.json: expected augment light, found elastic"),
        ({"hold_out": 20}, "origin.json: expected hold_out 20, found 0"),
        ({"teacher": "other"}, "origin.json: expected teacher_sha256 "),
        ({"teacher": None}, "expected a teacher, found none"),
    ],
    ids=["distortion", "held out", "teacher", "no teacher"],
)
def test_a_folder_of_another_origin(tmp_path, some_digits, options, change, message):
    if change.get("teacher"):
        change = {"teacher": str(saved(tmp_path / "other.safetensors", CNN, seed=4))}
    with pytest.raises(TrainingError, match=message):
        run(tmp_path / "second.safetensors", some_digits, replace(options, **change))
    assert not (tmp_path / "second.safetensors").exists()


def test_a_folder_of_other_images(tmp_path, some_digits, options):
    turned = replace(some_digits, train_images=some_digits.train_images[::-1].copy())
    with pytest.raises(TrainingError, match=r"origin\.json: expected images_sha256 "):
        run(tmp_path / "second.safetensors", turned, options)
    assert not (tmp_path / "second.safetensors").exists()


def test_damaged_files(tmp_path, some_digits, options):
    second = tmp_path / "epochs/epoch-0002.safetensors"
    os.truncate(second, 1000)
    with pytest.raises(TrainingError, match=r"epoch-0002\.safetensors: expected an epoch of images, found "):
        run(tmp_path / "second.safetensors", some_digits, options)
    run(
        tmp_path / "short.safetensors",
        first_digits(50),
        replace(options, teacher_cache=str(tmp_path / "short"), epochs=1),
    )
    second.write_bytes((tmp_path / "short/epoch-0001.safetensors").read_bytes())
    with pytest.raises(TrainingError, match=r"epoch-0002\.safetensors: expected .*\(101, 1, 28, 28\).*found .*\(50, "):
        run(tmp_path / "second.safetensors", some_digits, options)
    (tmp_path / "epochs/origin.json").write_text("[")
    with pytest.raises(TrainingError, match=r"origin\.json: expected a JSON object"):
        run(tmp_path / "third.safetensors", some_digits, options)
    (tmp_path / "epochs/origin.json").write_text(json.dumps([]))
    with pytest.raises(TrainingError, match=r"origin\.json: expected a JSON object, found list"):
        run(tmp_path / "third.safetensors", some_digits, options)
