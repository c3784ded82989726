import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from commands import failure, ok
from trainings import OPTIONS as PLAIN
from trainings import TINY, assert_identical, first_digits, run, series

from models.checkpoints.checkpoint import load
from models.data import DataError, hold_out
from models.evaluation.accuracy_and_calibration import measure_accuracy
from models.networks.registry import build
from models.train import train as command
from models.training import loop
from models.training.deepen import deepen
from models.training.loop import train
from models.training.recipe import TrainingError

RECIPE = replace(PLAIN, schedule="one-cycle", weight_decay=0.05, label_smoothing=0.05, clip=1.0, augment="light")


@pytest.fixture(scope="module")
def some_digits():
    return first_digits(200)


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        RECIPE,
        replace(RECIPE, precision="bf16"),
        replace(PLAIN, augment="study", augment_test=True),
        replace(RECIPE, augment="elastic", ema=0.9, last_block="all"),
        replace(PLAIN, teacher="TEACHER"),
    ],
    ids=["recipe", "bfloat16", "study", "elastic and average", "teacher"],
)
def test_resumed_is_uninterrupted(tmp_path, some_digits, teacher, options):
    options = replace(options, teacher=options.teacher and str(teacher))
    whole = run(tmp_path / "whole.safetensors", some_digits, options)
    parts = train(TINY, some_digits, options, tmp_path / "half.safetensors")
    half = [next(parts)]
    parts.close()
    torch.rand(7)
    half += run(tmp_path / "half.safetensors", some_digits, options, resume=True)
    assert series(half) == series(whole)
    assert_identical(tmp_path / "half.safetensors", tmp_path / "whole.safetensors")


@pytest.fixture(scope="module")
def plain_loss(tmp_path_factory, some_digits):
    return run(tmp_path_factory.mktemp("plain") / "plain.safetensors", some_digits, replace(PLAIN, epochs=1))[
        -1
    ].training_loss


@pytest.mark.parametrize(
    "change",
    [
        {"schedule": "one-cycle"},
        {"weight_decay": 0.5},
        {"label_smoothing": 0.3},
        {"clip": 0.01},
        {"precision": "bf16"},
        {"augment": "light"},
        {"augment": "study"},
        {"augment": "elastic"},
        {"last_block": "all"},
        {"hold_out": 50},
    ],
    ids=lambda change: next(iter(change)),
)
def test_every_option_counts(tmp_path, some_digits, plain_loss, change):
    other = run(tmp_path / "other.safetensors", some_digits, replace(PLAIN, epochs=1, **change))
    assert other[-1].training_loss != plain_loss
    name, value = next(iter(change.items()))
    assert load(tmp_path / "other.safetensors").metrics["options"][name] == value


@pytest.fixture(scope="module")
def teacher(tmp_path_factory, some_digits):
    path = tmp_path_factory.mktemp("teacher") / "teacher.safetensors"
    shifted = replace(some_digits, train_labels=(some_digits.train_labels + 1) % 10)
    run(path, shifted, replace(PLAIN, epochs=25))
    return path


@pytest.mark.slow
def test_a_teacher_tells_half(tmp_path, some_digits, teacher):
    path, options = tmp_path / "run.safetensors", replace(PLAIN, epochs=25)
    last = run(path, some_digits, replace(options, teacher=str(teacher)))[-1]
    alone = run(tmp_path / "alone.safetensors", some_digits, options)[-1]
    assert last.training_loss > alone.training_loss + 0.3, "two answers, each with half of the probability"
    with torch.no_grad():
        probabilities = load(path).model(torch.tensor(some_digits.train_images) / 255).softmax(1)
    own = torch.tensor(some_digits.train_labels)
    for labels in (own, (own + 1) % 10):
        assert probabilities.gather(1, labels[:, None]).mean() > 0.2, "a tenth would be a guess"
    assert load(path).metrics["options"]["teacher"] == str(teacher)


def test_a_teacher_that_cannot_teach(tmp_path, some_digits, teacher):
    missing = replace(PLAIN, teacher=str(tmp_path / "none.safetensors"))
    with pytest.raises(TrainingError, match=r"^teacher .*none.safetensors: expected a checkpoint, found No such file"):
        run(tmp_path / "run.safetensors", some_digits, missing)
    options = replace(PLAIN, teacher=str(teacher))
    with pytest.raises(TrainingError, match=r"teacher.safetensors: expected image_size \(14, 14\), found \(28, 28\)"):
        list(train(replace(TINY, image_size=(14, 14)), some_digits, options, tmp_path / "r", False, print))
    letters = replace(TINY, labels=tuple("012345678O"))
    with pytest.raises(TrainingError, match=r"teacher.safetensors: expected 'O' as class 9, found '9'"):
        list(train(letters, some_digits, options, tmp_path / "r", False, print))
    assert not (tmp_path / "run.safetensors").exists()


def test_one_cycle_ends_near_zero(tmp_path, some_digits):
    run(tmp_path / "run.safetensors", some_digits, RECIPE)
    state = torch.load(tmp_path / "run.resume.pt", weights_only=True)
    assert state["optimizer"]["param_groups"][0]["lr"] < 1e-3 * RECIPE.lr


def test_held_out_images_are_neither_trained_on_nor_those_of_the_test(digits):
    part = hold_out(digits, 300)
    assert (len(part.train_labels), len(part.test_labels)) == (len(digits.train_labels) - 300, 300)
    together = np.concatenate([part.train_images, part.test_images]).reshape(len(digits.train_labels), -1)
    expected = digits.train_images.reshape(len(digits.train_labels), -1)
    assert sorted(map(bytes, together)) == sorted(map(bytes, expected))
    np.testing.assert_array_equal(part.test_labels, hold_out(digits, 300).test_labels)


@pytest.mark.parametrize("count", [0, 199, 200, 5000])
def test_nothing_left_to_train_on(some_digits, count):
    with pytest.raises(DataError, match=f"expected to hold out 1 to 198 of 200 images, found {count}"):
        hold_out(some_digits, count)


def test_test_images_are_looked_at_after_the_last_epoch_alone(tmp_path, some_digits):
    options = replace(PLAIN, hold_out=50)
    epochs = train(TINY, some_digits, options, tmp_path / "run.safetensors")
    first = next(epochs)
    metrics = load(tmp_path / "run.safetensors").metrics
    assert (metrics["held_out_accuracy"], "test_accuracy" in metrics) == (first.test_accuracy, False)
    *_, last = epochs
    read = load(tmp_path / "run.safetensors")
    test = torch.tensor(some_digits.test_images), torch.tensor(some_digits.test_labels)
    assert read.metrics["held_out_accuracy"] == last.test_accuracy
    assert read.metrics["test_accuracy"] == measure_accuracy(read.model, *test)


def test_the_average_of_the_weights_is_what_is_measured_and_written(tmp_path, some_digits, monkeypatch):
    monkeypatch.setattr(loop, "WRITE_EVERY_S", 0)
    path, decay = tmp_path / "run.safetensors", 0.9
    epochs = train(TINY, some_digits, replace(PLAIN, ema=decay, batch_size=200), path)
    weights, average = [], None
    for epoch in epochs:  # of one step each
        state = torch.load(tmp_path / "run.resume.pt", weights_only=True)
        weights.append(state["model"]["head.weight"])
        share = max(1 - decay, 1 / epoch.epoch)
        average = weights[-1] if average is None else average.lerp(weights[-1], share)
        written = load(path)
        torch.testing.assert_close(written.model.head.weight.data, average)
        test = torch.tensor(some_digits.test_images), torch.tensor(some_digits.test_labels)
        assert epoch.test_accuracy == pytest.approx(measure_accuracy(written.model, *test), abs=2 / len(test[1]))
    assert not torch.equal(weights[-1], average)
    assert written.model.state_dict()["norm.norm.num_batches_tracked"] == 3
    assert written.metrics["options"]["ema"] == decay


def test_a_training_starts_from_another_ones_weights(tmp_path, some_digits):
    first, second = tmp_path / "first.safetensors", tmp_path / "second.safetensors"
    run(first, some_digits, PLAIN)
    options = replace(PLAIN, epochs=1, lr=1e-9, init=str(first), seed=5)
    run(second, some_digits, options)
    before, after = (load(path).model.state_dict() for path in (first, second))
    for name, tensor in after.items():
        if "running" not in name and "tracked" not in name:
            torch.testing.assert_close(tensor, before[name], rtol=0, atol=1e-7)
    assert load(second).metrics["options"]["init"] == str(first)


@pytest.mark.parametrize(
    "geometry",
    [{}, {"class_attention": (2, 8)}, {"heads": 1, "dim_head": TINY.dim, "qkv_bias": True}, {"model": "vit"}],
    ids=["usual", "class attention", "no projection of the head", "LayerNorm"],
)
def test_a_deeper_network_starts_with_the_answers_of_a_shallower_one(tmp_path, some_digits, geometry):
    first, second = tmp_path / "first.safetensors", tmp_path / "second.safetensors"
    shallow, deep = (replace(TINY, depth=depth, **geometry) for depth in (2, 4))
    list(train(shallow, some_digits, replace(PLAIN, epochs=1), first))
    before = load(first).model
    model = build(deep)
    model.load_state_dict(deepen(before.state_dict(), 4))
    images = torch.tensor(some_digits.test_images) / 255
    torch.testing.assert_close(model.eval()(images), before.eval()(images), rtol=0, atol=0)
    list(train(deep, some_digits, replace(PLAIN, epochs=1, lr=1e-9, init=str(first)), second))
    for name, tensor in load(second).model.state_dict().items():
        if "running" not in name and "tracked" not in name:
            torch.testing.assert_close(tensor, model.state_dict()[name], rtol=0, atol=1e-7)


def test_weights_that_do_not_fit(tmp_path, some_digits):
    missing = replace(PLAIN, init=str(tmp_path / "none.safetensors"))
    with pytest.raises(TrainingError, match=r"^init .*none.safetensors: expected a checkpoint, found No such file"):
        run(tmp_path / "run.safetensors", some_digits, missing)
    path = tmp_path / "other.safetensors"
    for other, expected in (
        (replace(TINY, mlp_dim=32), r"blocks.0.ffn.hidden_norm.norm.bias \(24,\), found \(32,\)"),
        (replace(TINY, depth=2), r"blocks.1.attention.norm.norm.bias none, found \(16,\)"),
    ):
        list(train(other, some_digits, replace(PLAIN, epochs=1), path))
        with pytest.raises(TrainingError, match=f"other.safetensors: expected {expected}"):
            run(tmp_path / "run.safetensors", some_digits, replace(PLAIN, init=str(path)))
    assert not (tmp_path / "run.safetensors").exists()


def test_parameters_from_a_file(tmp_path):
    values = {"model": "vit", "lr": 0.002, "batch_size": 200, "augment": "light", "epochs": 9, "clip": None}
    path, output = tmp_path / "params.json", tmp_path / "run.safetensors"
    path.write_text(json.dumps(values))
    ok(command, "--params", path, "--depth", 1, "--epochs", 1, "--model", "vit", "--output", output)
    options = load(output).metrics["options"]
    assert (options["lr"], options["batch_size"], options["augment"]) == (0.002, 200, "light")
    assert options["epochs"] == 1, "the command line goes before the file"


@pytest.mark.parametrize(
    ("content", "found"), [({"learning_rate": 1}, "learning_rate"), ({"output": "elsewhere"}, "output"), ([1], "list")]
)
def test_parameters_that_are_none_name_all_that_are(tmp_path, content, found):
    (tmp_path / "params.json").write_text(json.dumps(content))
    line, code = failure(command, "--params", tmp_path / "params.json", "--output", tmp_path / "run")
    assert (code, ": expected options out of augment, " in line, line.endswith(f", found {found}")) == (2, True, True)
