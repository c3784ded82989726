"""A trial on a part of the pictures chooses how to train."""

import re
import shutil

import numpy as np
import pytest
from commands import ok
from PIL import Image

from models.checkpoints.checkpoint import load
from models.data.dataset import Dataset
from models.evaluation.accuracy_and_calibration import classify
from models.train import train
from models.training import augmentation_check, loop, recipe_trial
from models.training.recipe import TrainingOptions

FLAT = Dataset("mine", *(np.zeros((48, 1, 28, 28), np.uint8), np.arange(48) % 2) * 2, ("a", "b"))


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
@pytest.mark.parametrize("best", ["cnn turn-colour", "dnnbn none"])
def test_the_best_way_is_taken_and_a_resumed_training_keeps_it(bars, tmp_path, monkeypatch, best):
    def right(data, config, options, fold, on_batch):
        return 60 if f"{config.model} {options.augment}" == best else 50

    monkeypatch.setattr(recipe_trial, "_right", right)
    monkeypatch.setattr(augmentation_check, "hide_classes", lambda *unused: True)
    typed = ("--dataset", bars, "--image-size", 20, 20, "--device", "cpu", "--output", tmp_path / "bars.safetensors")
    told = ok(train, *typed, "--epochs", 4, "--schedule", "constant").output
    model, augment = best.split()
    assert f" --augment {augment} " in told
    assert f" --model {model} " in told
    assert "of 60 pictures kept apart for a trial were right: " in told
    again = ok(train, *typed, "--epochs", 5, "--schedule", "constant", "--resume").output
    assert "kept apart" not in again
    network = load(tmp_path / "bars.safetensors")
    assert (network.config.model, network.metrics["options"]["augment"]) == (model, augment)


def test_of_few_pictures_each_quarter_judges_alike_each_time(bars, tmp_path):
    for folder in bars.iterdir():
        few = tmp_path / "few" / folder.name
        few.mkdir(parents=True)
        for number in range(30):
            shutil.copy(folder / f"{number}.png", few)
    typed = ("--dataset", tmp_path / "few", "--image-size", 20, 20, "--device", "cpu", "--epochs", 4, "--overwrite")
    found = []
    for _ in range(2):
        told = ok(train, *typed, "--output", tmp_path / "bars.safetensors").output
        found.append([line for line in told.splitlines() if "Trying on" in line or "kept apart" in line])
    assert " of 48 pictures kept apart for a trial " in told
    assert 1 <= told.count("The trial: ") <= 4, "no terminal shows a bar"
    assert len(found[0]) == 2
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("augment", "usual", "other", "taken"),
    [
        ("none", 24, 33, "usual"),
        ("none", 24, 34, "other"),
        ("none", 44, 48, "other"),
        ("none", 45, 48, "usual"),
        ("turn-colour", 24, 26, "usual"),
        ("turn-colour", 24, 27, "other"),
    ],
)
def test_a_lead_that_may_be_chance_changes_nothing(monkeypatch, augment, usual, other, taken):
    ways = {name: (name, TrainingOptions(augment=each)) for name, each in (("usual", "turn"), ("other", augment))}
    answer(monkeypatch, {"usual": quarters(usual), "other": quarters(other)})
    assert recipe_trial.best_way(FLAT, ways, print)[0] == taken


@pytest.mark.parametrize("seed", range(40))
def test_a_way_is_left_once_it_cannot_be_chosen_and_the_choice_stays(monkeypatch, seed):
    """40 drawings of right answers: the choice is that of all answers, by fewer trainings."""
    rng, ways = np.random.default_rng(seed), {name: (name, TrainingOptions()) for name in "abcd"}
    right = {name: rng.binomial(12, rng.uniform(0.2, 0.93), 4).tolist() for name in ways}
    with monkeypatch.context() as whole:
        whole.setattr(recipe_trial, "_best", lambda ways, right, count: [*right][-1])
        asked = answer(whole, right)
        recipe_trial.best_way(FLAT, ways, print)
    totals = {name: sum(right[name][: asked.count(name)]) for name in ways if name in asked}
    complete = recipe_trial._best(ways, totals, 48)
    fewer = answer(monkeypatch, right)
    chosen, reason = recipe_trial.best_way(FLAT, ways, print)
    assert chosen == complete
    assert len(fewer) <= len(asked)
    assert all(
        (f"of the first {12 * fewer.count(name)} {name}" in reason) == (fewer.count(name) < 4) for name in totals
    )


def test_a_hopeless_way_is_left_after_a_quarter(monkeypatch):
    ways = {name: (name, TrainingOptions()) for name in ("usual", "good", "bad")}
    asked = answer(monkeypatch, {"usual": [6] * 4, "good": [11] * 4, "bad": [3, 12, 12, 12]})
    chosen, reason = recipe_trial.best_way(FLAT, ways, print)
    assert (chosen, asked) == ("good", ["usual"] * 4 + ["good"] * 4 + ["bad"])
    assert "were right: 50 % usual, 92 % good, 25 % of the first 12 bad" in reason


def quarters(total):
    return np.diff(np.arange(5) * total // 4).tolist()


def answer(monkeypatch, right):
    """Lets each short training of a way get its next number of right answers. Returns the names of those that ran."""
    asked = []

    def one(data, name, options, fold, on_batch):
        asked.append(name)
        return right[name][asked.count(name) - 1]

    monkeypatch.setattr(recipe_trial, "_right", one)
    return asked


def test_a_trial_writes_nothing_and_judges_once(monkeypatch):
    def unwanted(*args):
        raise AssertionError("a checkpoint")

    judged = []
    monkeypatch.setattr(loop, "write", unwanted)
    monkeypatch.setattr(loop, "classify", lambda *args: judged.append(args) or classify(*args))
    images = np.random.default_rng(0).integers(0, 256, (16, 1, 20, 20), np.uint8)
    data = Dataset("mine", *(images, np.arange(16) % 2) * 2, ("a", "b"))
    config = data.model_config("dnnbn", 1)
    ways = {"usual": (config, TrainingOptions(epochs=12, batch_size=6, device="cpu"))}
    _, reason = recipe_trial.best_way(data, ways, lambda images, loss: None)
    assert " of 16 pictures kept apart " in reason
    assert len(judged) == 4  # by every quarter, after three epochs


@pytest.mark.parametrize(("right", "told"), [(30, True), (47, False)])
def test_a_simpler_tool_is_named_where_it_is_clearly_better(monkeypatch, right, told):
    """Classes that differ in the strength of their noise."""
    rng, labels = np.random.default_rng(0), np.arange(48) % 2
    images = (128 + rng.normal(0, 20 + 30 * labels[:, None, None, None], (48, 1, 20, 20))).clip(0, 255).astype(np.uint8)
    monkeypatch.setattr(recipe_trial, "_right", lambda *_: right // 4)
    ways = {name: (None, TrainingOptions(augment="turn")) for name in ("usual", "other")}
    _, reason = recipe_trial.best_way(Dataset("mine", *(images, labels) * 2, ("a", "b")), ways, print)
    assert ("; ridge regression is right for 100 %, so a simpler tool" in reason) == told


@pytest.mark.slow
def test_a_weak_pattern_in_noise_is_learnt(tmp_path):
    """Of single pixels, a third as strong as the noise: turned pictures lose it."""
    random = np.random.default_rng(0)
    for name in "abcd":
        (tmp_path / "mine" / name).mkdir(parents=True)
        pattern = random.choice([-15, 15], (20, 20))
        for number in range(20):
            pixels = (128 + pattern + random.normal(0, 50, (20, 20))).clip(0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(tmp_path / "mine" / name / f"{number}.png")
    told = ok(
        train, "--dataset", tmp_path / "mine", "--device", "cpu", "--epochs", 32, "--output", tmp_path / "x"
    ).output
    assert "Why: trained undistorted by a dense network, as of 64 pictures kept apart for a trial were right: " in told
    share = int(re.search(r"Test part: 16 pictures: (\d+) %", told)[1])
    assert share >= 85
