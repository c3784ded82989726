import io
import itertools
import json
import shlex
import sys
from dataclasses import asdict, replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import trainings
from trainings import OPTIONS, assert_identical, first_digits, series, silent

from common.files import typed_command
from models.checkpoints import checkpoint
from models.checkpoints.checkpoint import load
from models.evaluation.accuracy_and_calibration import measure_accuracy
from models.networks.config import TRANSFORMER_NAMES, ModelConfig
from models.training import loop
from models.training.loop import train
from models.training.recipe import TrainingError

TINY = replace(trainings.TINY, dropout=0.1, emb_dropout=0.1)


def run(path, dataset, options=OPTIONS, config=TINY, **others):
    return trainings.run(path, dataset, options, config, **others)


CHANGING = ("vitbn", "vit-prepbn")  # the second changes during training


@pytest.fixture(scope="module")
def some_digits():
    """Two batches of 50, and one image over."""
    return first_digits(101)


def test_the_seed_decides(tmp_path, some_digits):
    first = run(tmp_path / "first.safetensors", some_digits)
    torch.rand(7)
    second = run(tmp_path / "second.safetensors", some_digits)
    assert series(first) == series(second)
    assert_identical(tmp_path / "first.safetensors", tmp_path / "second.safetensors")
    assert series(first) != series(run(tmp_path / "third.safetensors", some_digits, replace(OPTIONS, seed=1)))


def test_an_interrupted_epoch_is_run_again(tmp_path, some_digits, interrupt):
    run(tmp_path / "whole.safetensors", some_digits)
    path = tmp_path / "broken.safetensors"
    with pytest.raises(KeyboardInterrupt):
        run(path, some_digits, on_batch=interrupt)
    assert load(path).metrics["epochs"] == 1
    run(path, some_digits, resume=True)
    assert_identical(path, tmp_path / "whole.safetensors")


@pytest.mark.parametrize(("every_s", "writes"), [(1000, [1, 12]), (0, [*range(1, 13)])])
def test_short_epochs_share_a_write(tmp_path, monkeypatch, every_s, writes):
    written = []
    monkeypatch.setattr(loop, "WRITE_EVERY_S", every_s)
    monkeypatch.setattr(loop, "write", lambda state, *others: written.append(len(state.series)))
    run(tmp_path / "run.safetensors", first_digits(4), replace(OPTIONS, epochs=12))
    assert written == writes


@pytest.mark.parametrize("held", [False, True], ids=["the last epoch is kept", "the best epoch is kept"])
def test_a_training_left_between_two_writes_loses_no_epoch(tmp_path, some_digits, held):
    options = replace(OPTIONS, epochs=7, lr=0.05, schedule="one-cycle", ema=0.5)
    if held:
        options = replace(options, hold_out=10)
        some_digits = replace(some_digits, held=(some_digits.test_images, some_digits.test_labels))
    whole = run(tmp_path / "whole.safetensors", some_digits, options)
    path, accuracies = tmp_path / "left.safetensors", []
    for _ in range(2):
        epochs = train(TINY, some_digits, options, path, resume=path.exists())
        accuracies += [epoch.test_accuracy for epoch in itertools.islice(epochs, 3)]
        assert load(path).metrics["epochs"] == len(accuracies) - 2, "the first of each call is written at once"
        epochs.close()
        best = max(range(len(accuracies)), key=lambda number: (accuracies[number], number)) + 1
        metrics = load(path).metrics
        assert (metrics["epochs"], metrics["kept_epoch"]) == (len(accuracies), best if held else len(accuracies))
    assert series(whole)[6:] == series(run(path, some_digits, options, resume=True))
    assert_identical(path, tmp_path / "whole.safetensors")


def test_ctrl_c_during_a_write_leaves_a_whole_state(tmp_path, some_digits, monkeypatch):
    path, save = tmp_path / "run.safetensors", checkpoint.save

    def interrupted(*arguments):
        monkeypatch.setattr(checkpoint, "save", save)
        save(*arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(checkpoint, "save", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(path, some_digits)
    assert [epoch.epoch for epoch in run(path, some_digits, resume=True)] == [2, 3]


def test_a_training_that_cannot_be_written_does_not_resume_as_the_one_that_it_replaces(tmp_path, some_digits):
    path = tmp_path / "run.safetensors"
    run(path, some_digits)
    path.with_suffix(".json").unlink()
    path.with_suffix(".json").mkdir()
    with pytest.raises(FileExistsError):
        run(path, some_digits)
    with pytest.raises(TrainingError, match=r"run\.resume\.pt: expected the state .* to resume, found no such file"):
        run(path, some_digits, resume=True)


def test_two_trainings_at_once_do_not_replace_each_other(tmp_path, some_digits):
    path, again = tmp_path / "run.safetensors", replace(OPTIONS, seed=1)
    epochs = train(
        TINY, some_digits, OPTIONS, path, on_batch=lambda images, loss: path.exists() or run(path, some_digits, again)
    )
    with pytest.raises(TrainingError, match=r"run\.safetensors: expected this training's last epoch, found another"):
        next(epochs)
    assert load(path).metrics["options"]["seed"] == 1


def test_resume_of_another_run_says_what_differs(tmp_path, some_digits):
    path = tmp_path / "run.safetensors"
    run(path, some_digits, replace(OPTIONS, epochs=1))
    before = path.read_bytes()
    for changes, config, expected, found in (
        ({"lr": 0.001}, TINY, '"lr": 0.001', '"lr": 0.003'),
        ({"batch_size": 25}, TINY, '"batch_size": 25', '"batch_size": 50'),
        ({"seed": 1}, TINY, '"seed": 1', '"seed": 0'),
        ({}, replace(TINY, mlp_dim=32), '"mlp_dim": 32', '"mlp_dim": 24'),
    ):
        said = rf"run\.resume\.pt: expected a run of \W?{expected}\W?, found \W?{found}\W?$"
        with pytest.raises(TrainingError, match=said):
            run(path, some_digits, replace(OPTIONS, **changes), config, resume=True)
    with pytest.raises(TrainingError, match="expected a run of 60 training images, found 101"):
        run(path, first_digits(60), resume=True)
    assert path.read_bytes() == before


def test_a_single_image_is_refused(tmp_path):
    with pytest.raises(TrainingError, match="digits: expected a batch of two images or more, found 1 "):
        run(tmp_path / "run.safetensors", first_digits(1))


def test_the_command_can_be_pasted(monkeypatch):
    for program, shown in (("models/train.py", ["python", "models/train.py"]), ("/opt/venv/bin/vitbn", ["vitbn"])):
        monkeypatch.setattr(sys, "argv", [program, "train", "--teacher", "my nets/it's.safetensors"])
        assert shlex.split(typed_command()) == [*shown, "train", "--teacher", "my nets/it's.safetensors"]


def state(content):
    buffer = io.BytesIO()
    torch.save(content, buffer)
    return buffer.getvalue()


@pytest.mark.parametrize(
    "content",
    [None, b"", b"not a state", b"PK\x03\x04", state({"epoch": 3}), state([1, 2])],
    ids=["no file", "nothing", "text", "half an archive", "one field", "a list"],
)
def test_resume_of_a_damaged_state(tmp_path, some_digits, content):
    if content is not None:
        (tmp_path / "run.resume.pt").write_bytes(content)
    said = "the state of an earlier run to resume, found no such file" if content is None else ""
    with pytest.raises(TrainingError, match=rf"run\.resume\.pt: expected {said}"):
        run(tmp_path / "run.safetensors", some_digits, resume=True)


def test_training_loss_is_the_mean_over_images_trained_on(tmp_path):
    """Batches of 40, 40 and 20; a last batch of one image is skipped."""
    for images, counts in ((100, [40, 40, 20]), (81, [40, 40])):
        batches, options = [], replace(OPTIONS, epochs=1, batch_size=40)
        path, digits = tmp_path / f"{images}.safetensors", first_digits(images)
        (epoch,) = run(path, digits, options, on_batch=lambda *batch, seen=batches: seen.append(batch))
        assert [count for count, _ in batches] == counts
        mean = sum(count * loss for count, loss in batches) / sum(counts)
        assert epoch.training_loss == pytest.approx(mean, rel=1e-5)


def test_loss_that_is_not_finite_keeps_the_last_checkpoint(tmp_path, some_digits, monkeypatch):
    path = tmp_path / "run.safetensors"
    run(path, some_digits, replace(OPTIONS, epochs=1))
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    monkeypatch.setattr(F, "cross_entropy", lambda logits, labels, **others: logits.sum() * float("nan"))
    with pytest.raises(TrainingError, match="training loss: expected a finite number, found nan; try a lower --lr"):
        run(path, some_digits, resume=True)
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before


def test_a_network_that_diverged_in_its_last_step_is_not_kept(tmp_path, some_digits):
    one_batch = replace(OPTIONS, batch_size=200, lr=1e30)
    with pytest.raises(TrainingError, match="try a lower --lr"):
        run(tmp_path / "run.safetensors", some_digits, one_batch)
    assert list(tmp_path.iterdir()) == []


def test_out_of_memory_names_the_knob(tmp_path, some_digits, monkeypatch):
    """PyTorch's own refusal of 4 PB."""
    monkeypatch.setattr(F, "cross_entropy", lambda *logits, **others: torch.empty(1 << 50))
    with pytest.raises(TrainingError, match=r"^cpu: out of memory with batches of 50; lower --batch-size$"):
        run(tmp_path / "run.safetensors", some_digits)
    assert list(tmp_path.iterdir()) == []


def test_progressive_repbn_is_annealed_and_resumes_with_its_share(tmp_path, some_digits):
    config = replace(TINY, model="vit-prepbn")
    options = replace(OPTIONS, epochs=4)
    whole = run(tmp_path / "whole.safetensors", some_digits, options, config)
    epochs = train(config, some_digits, options, tmp_path / "half.safetensors", False, silent)
    next(epochs)
    epochs.close()
    first = load(tmp_path / "half.safetensors").model.get_submodule("norm")
    assert first.layer_norm_share == pytest.approx(1 - (0 + 0.5) / 4 / 0.8)  # of the second of two batches
    rest = run(tmp_path / "half.safetensors", some_digits, options, config, resume=True)
    assert series(whole)[1:] == series(rest)
    assert_identical(tmp_path / "half.safetensors", tmp_path / "whole.safetensors")
    assert load(tmp_path / "whole.safetensors").model.get_submodule("norm").layer_norm_share == 0
    with pytest.raises(TrainingError, match="expected a run of"):
        run(tmp_path / "half.safetensors", some_digits, replace(options, epochs=8), config, resume=True)


def test_series_stand_beside_the_checkpoint_which_says_how_it_was_trained(tmp_path, some_digits):
    epochs = run(tmp_path / "run.safetensors", some_digits)
    written = json.loads((tmp_path / "run.json").read_text())
    assert written["options"] == asdict(OPTIONS)
    assert written["config"] == json.loads(TINY.to_json())
    assert (written["dataset"], written["test_images"], written["epochs"]) == ("digits", 359, 3)
    assert written["series"] == [asdict(epoch) for epoch in epochs]
    counts = np.bincount(some_digits.test_labels)
    for row in written["series"]:
        assert np.dot(counts, row["class_accuracy"]) / 359 == pytest.approx(row["test_accuracy"])
        assert min(row["training_time_s"], row["test_time_s"]) > 0
    read, last = load(tmp_path / "run.safetensors"), epochs[-1]
    images, labels = torch.tensor(some_digits.test_images), torch.tensor(some_digits.test_labels)
    with torch.inference_mode():
        right = (read.model(images.float() / 255).argmax(1) == labels).sum().item()
    assert measure_accuracy(read.model, images, labels) == last.test_accuracy == right / len(labels)
    assert read.config == TINY
    assert read.metrics == {
        "command": typed_command(),
        "dataset": "digits",
        "test_accuracy": last.test_accuracy,
        "test_images": 359,
        "epochs": 3,
        "kept_epoch": 3,
        "last_batch": 50,
        "options": asdict(OPTIONS),
    }


@pytest.mark.slow
@pytest.mark.parametrize("model", [*(name for name in TRANSFORMER_NAMES if name not in CHANGING), "cnn"])
def test_every_model_trains(tmp_path, some_digits, model):
    config = ModelConfig(model="cnn") if model == "cnn" else replace(TINY, model=model)
    epochs = run(tmp_path / "run.safetensors", some_digits, replace(OPTIONS, epochs=6), config)
    assert epochs[-1].training_loss < epochs[0].training_loss
