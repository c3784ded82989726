from dataclasses import replace
from functools import partial

import commands
import numpy as np
import pytest
import random_networks
import torch
from PIL import Image
from striped_folder import written_pictures

from common.files import typed_command
from models.adapt import adapt as command
from models.checkpoints.checkpoint import load
from models.data import load_digits
from models.evaluation.accuracy_and_calibration import measure_accuracy
from models.networks.config import ModelConfig
from models.training import batch_norm_adaptation
from models.training.batch_norm_adaptation import adapt
from models.training.loop import train
from models.training.recipe import TrainingOptions

TINY = ModelConfig(dim=16, depth=1, heads=2, dim_head=8, mlp_dim=16)
run = partial(commands.ok, command)


@pytest.fixture
def images():
    return torch.tensor(load_digits().test_images[:40])


@pytest.fixture
def network():
    return random_networks.network(TINY)


@pytest.mark.slow
def test_the_copy_answers_as_batch_statistics_do(network, images):
    adapted = adapt(network, images)
    state, other = network.state_dict(), adapted.state_dict()
    changed = {name for name in state if not torch.equal(state[name], other[name])}
    assert changed == {name for name in state if "running_" in name or "num_batches" in name}
    first = adapted.patch_norm.norm
    rows = network.to_patches(images / 255).reshape(-1, 49)
    torch.testing.assert_close(first.running_mean, rows.mean(0), rtol=0, atol=1e-6)
    torch.testing.assert_close(first.running_var, rows.var(0), rtol=0, atol=1e-6)
    with torch.no_grad():
        torch.testing.assert_close(adapted(images / 255), network.train()(images / 255), rtol=0, atol=0.02)
        assert (adapted(images / 255) - network.eval()(images / 255)).abs().max() > 0.1


def faint(images):
    return (images * 0.3 + 100).astype(np.uint8)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    metrics = {"dataset": "digits", "command": "none", "options": {"last_block": "row"}, "epochs": 3}
    return random_networks.saved(tmp_path_factory.mktemp("saved") / "digits.safetensors", TINY, metrics)


@pytest.mark.slow
def test_pictures_of_the_new_source_give_the_accuracy_back(tmp_path):
    """Statistics of all rows would give back a third."""
    digits, out, trained = load_digits(), tmp_path / "adapted.safetensors", tmp_path / "digits.safetensors"
    options = TrainingOptions(epochs=5, batch_size=50, lr=0.01, seed=0, device="cpu")
    list(train(replace(TINY, dim=32), digits, options, trained))
    folder = written_pictures(tmp_path / "faint", faint(digits.test_images[:60]))
    (folder / "notes.txt").write_text("no picture")
    result = run(trained, folder, "--output", out)
    assert f"{trained} with the BatchNorm statistics of 60 pictures in {folder}" in result.output
    labels = torch.tensor(digits.test_labels[60:])
    sets = [torch.tensor(each[60:]) for each in (digits.test_images, faint(digits.test_images))]
    usual, shifted, adapted = (
        measure_accuracy(load(path).model, images, labels)
        for path, images in ((trained, sets[0]), (trained, sets[1]), (out, sets[1]))
    )
    assert usual > 0.8
    assert shifted < 0.5
    assert adapted > usual - 0.1


def test_the_checkpoint_says_where_it_comes_from_and_what_is_left_out_is_said(saved, tmp_path):
    images = load_digits().test_images[:50]
    folder = written_pictures(tmp_path / "new", images)
    frames = [Image.fromarray(image[0]) for image in images[:2]]
    frames[0].save(folder / "0.png", save_all=True, append_images=frames[1:], format="PNG")
    (folder / "notes.txt").write_text("none")
    (folder / "more").mkdir()
    before = saved.read_bytes()
    out = tmp_path / "adapted.safetensors"
    told = run(saved, folder, "--output", out).output
    assert "suffix is of no picture that is read here: 1 file (.txt 1)\n" in told
    assert "Left out, as folders: 1, such as more\n" in told
    assert "Read of several frames or pages, the first: 1 picture, such as 0.png\n" in told
    source, adapted = load(saved), load(out)
    assert (saved.read_bytes(), adapted.config) == (before, source.config)
    assert adapted.metrics == {
        "dataset": "digits",
        "command": typed_command(),
        "adapted": {
            "checkpoint": "digits.safetensors",
            "sha256": source.sha256,
            "training_command": source.metrics["command"],
            "last_block": "row",
            "pictures": 51,
        },
    }


def test_many_pictures_are_taken_evenly(saved, tmp_path, monkeypatch):
    monkeypatch.setattr(batch_norm_adaptation, "MOST", 50)
    images = load_digits().test_images[:120]
    folder = written_pictures(tmp_path / "new", images)
    out = tmp_path / "adapted.safetensors"
    run(saved, folder, "--output", out)
    expected = adapt(load(saved).model, torch.tensor(images[::3]), last_block="row")
    assert load(out).metrics["adapted"]["pictures"] == 40
    torch.testing.assert_close(load(out).model.state_dict(), expected.state_dict(), rtol=0, atol=0)


def test_photos_are_cut_as_in_training(tmp_path):
    config = replace(TINY, channels=3, image_size=(16, 16), patch_size=(8, 8), preprocessing="photo")
    random_networks.saved(tmp_path / "photos.safetensors", config)
    noise = np.random.default_rng(0).integers(0, 256, (50, 3, 30, 44), np.uint8)
    folder = written_pictures(tmp_path / "new", noise)
    out = tmp_path / "adapted.safetensors"
    run(tmp_path / "photos.safetensors", folder, "--output", out)
    mean = load(out).model.patch_norm.norm.running_mean
    assert abs(mean.mean() - 0.5) < 0.02
