"""Pictures in colour whose colours do not tell the classes: a trial on a part of them chooses the distortion."""

import shutil

import numpy as np
import pytest
from commands import ok
from PIL import Image

from models.checkpoints.checkpoint import load
from models.train import train
from models.training import trial


@pytest.fixture(scope="module")
def bars(tmp_path_factory):
    """300 upright and level bars of random colours on random colours."""
    folder, rng = tmp_path_factory.mktemp("trial") / "bars", np.random.default_rng(0)
    for label, name in enumerate(("level", "upright")):
        (folder / name).mkdir(parents=True)
        for number in range(150):
            paper, paint = rng.integers(0, 256, (2, 3), np.uint8)
            pixels = np.tile(paper, (20, 20, 1))
            pixels[8:12, 2:18] = paint
            Image.fromarray(pixels.swapaxes(0, 1) if label else pixels).save(folder / name / f"{number}.png")
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(("lead", "augment"), [(-1, "turn-colour"), (1, "turn")])
def test_the_better_distortion_is_taken_and_a_resumed_training_keeps_it(bars, tmp_path, monkeypatch, lead, augment):
    monkeypatch.setattr(trial, "LEAD", lead)
    typed = ("--dataset", bars, "--image-size", 20, 20, "--device", "cpu", "--output", tmp_path / "bars.safetensors")
    told = ok(train, *typed, "--epochs", 4, "--schedule", "constant").output
    assert f" --augment {augment} " in told
    assert "; of 60 pictures kept apart for a trial " in told
    monkeypatch.setattr(trial, "LEAD", -lead)
    again = ok(train, *typed, "--epochs", 5, "--schedule", "constant", "--resume").output
    assert "kept apart" not in again
    assert load(tmp_path / "bars.safetensors").metrics["options"]["augment"] == augment


def test_of_few_pictures_each_quarter_judges(bars, tmp_path):
    for folder in bars.iterdir():
        few = tmp_path / "few" / folder.name
        few.mkdir(parents=True)
        for number in range(30):
            shutil.copy(folder / f"{number}.png", few)
    typed = ("--dataset", tmp_path / "few", "--image-size", 20, 20, "--device", "cpu", "--epochs", 4)
    told = ok(train, *typed, "--output", tmp_path / "bars.safetensors").output
    assert "; of 48 pictures kept apart for a trial " in told


@pytest.mark.slow
def test_a_trial_is_alike_each_time(bars, tmp_path):
    output, found = tmp_path / "bars.safetensors", []
    typed = ("--dataset", bars, "--image-size", 20, 20, "--device", "cpu", "--output", output)
    for more in ((), ("--overwrite",)):
        told = ok(train, *typed, "--epochs", 4, *more).output
        found.append([line for line in told.splitlines() if "Colours alone" in line or "kept apart" in line])
    assert len(found[0]) == 2
    assert found[0] == found[1]
