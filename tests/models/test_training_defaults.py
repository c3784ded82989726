"""A folder's training follows the number of its pictures; what is given stands."""

import shlex

import numpy as np
import pytest
from commands import ok
from PIL import Image

from benchmarks.studies.synthetic_datasets import shapes
from models.checkpoints.checkpoint import load
from models.data import load_dataset
from models.data.dataset import DataError, Dataset
from models.data.digits import load_digits
from models.train import train
from models.training import augmentation_check
from models.training.folder_defaults import USUAL, usual, ways
from models.training.recipe import configure


def folder_of(count, side=28):
    images, labels = np.broadcast_to(np.uint8(0), (count, 1, side, side)), np.arange(count) % 3
    return Dataset(
        "mine", images, labels, images, labels, ("a", "b", "c"), preprocessing="photo", patch_size=(4, 4), pictures={}
    )


@pytest.mark.parametrize("count", [2, 6, 48, 240, 800, 8000])
@pytest.mark.parametrize(("side", "model"), [(28, None), (28, "vit"), (28, "cnn"), (96, None)])
def test_any_number_of_pictures_can_be_trained_on(count, side, model):
    data = folder_of(count, side)
    chosen, reason = usual(data, {"model": model} if model else {})
    config, options = configure(data, {"model": model, **chosen})
    assert 2 <= options.batch_size <= max(2, count)
    assert 20 <= options.epochs <= 1000
    assert config.model == (model or ("cnn" if side == 28 else "vitbn"))
    assert reason


@pytest.mark.parametrize(
    ("count", "side", "model", "seen"),
    [
        (240, 28, "cnn", 96_000),
        (8000, 28, "cnn", 160_000),
        (30_000, 28, "vitbn", 600_000),
        (800, 64, "cnn", 32_000),
        (8000, 64, "vitbn", 160_000),
    ],
)
def test_the_time_of_a_training_is_bounded(count, side, model, seen):
    """Convolutions take ten times as long for 64x64 as for 28x28, so such pictures are seen less often."""
    chosen, _ = usual(folder_of(count, side), {})
    assert (chosen["model"], {"mixup", "cutmix"} <= chosen.keys()) == (model, model == "cnn")
    assert chosen["epochs"] * count == seen


@pytest.mark.parametrize(("count", "model", "shades"), [(48, "cnn", True), (240, "cnn", False), (48, "vit", False)])
def test_fewer_than_200_pictures_get_shades(count, model, shades):
    chosen, _ = usual(folder_of(count), {"model": model})
    assert chosen["augment"] == ("turn-shade" if shades else "turn")


def dataset(images, labels):
    images = images.clip(0, 255).astype(np.uint8)
    return Dataset("mine", images, labels, images, labels, tuple("0123456789"), preprocessing="photo", pictures={})


def tried(data, **given):
    return [*ways(data, given, usual(data, given)[0])]


def weak_pattern(count):
    """Of each class a pattern of single pixels, a fifth as strong as the noise."""
    random, labels = np.random.default_rng(0), np.arange(count) % 4
    pattern = random.choice([-10, 10], (4, 1, 28, 28))
    return dataset(128 + pattern[labels] + random.normal(0, 50, (count, 1, 28, 28)), labels)


def greys(count):
    random, labels = np.random.default_rng(0), np.arange(count) % 5
    return dataset(40 + 35 * labels[:, None, None, None] + random.normal(0, 20, (count, 1, 28, 28)), labels)


def strengths(count):
    random, labels = np.random.default_rng(0), np.arange(count) % 4
    return dataset(128 + (10 + 8 * labels)[:, None, None, None] * random.normal(0, 1, (count, 1, 28, 28)), labels)


@pytest.mark.parametrize("count", [48, 240])
@pytest.mark.parametrize("draw", [weak_pattern, greys, strengths])
def test_pictures_whose_classes_distortions_hide_are_tried_as_they_are(draw, count):
    plain, dense = "undistorted", "undistorted by a dense network"
    first = [USUAL, "rolled", *["in their own shades"] * (count < 200)]
    assert tried(draw(count)) == [*first, dense, plain]
    assert tried(draw(count), model="cnn") == [*first, plain]
    assert tried(draw(count), dim=32) == [USUAL, plain], "an option of transformers asks for a transformer"
    assert tried(draw(count), augment="turn") == [USUAL]


def test_what_is_tried_is_given_to_the_training():
    data = weak_pattern(48)
    values = ways(data, {"mixup": 0.2}, usual(data, {"mixup": 0.2})[0])["undistorted by a dense network"]
    assert values["model"] == "dnnbn"
    assert (values["augment"], values["cutmix"], "mixup" in values) == ("none", 0, False)


@pytest.mark.parametrize("count", [48, 240])
def test_garments_and_shapes_are_trained_on_as_usual(count, fashion_mnist_dir):
    garments, drawn = load_dataset("fashion-mnist", fashion_mnist_dir), shapes(count, 1)
    assert tried(dataset(garments.train_images[:count], garments.train_labels[:count])) == [USUAL]
    assert tried(dataset(drawn.train_images, drawn.train_labels)) == [USUAL, "with other colours"]


@pytest.mark.parametrize("shape", [(1500, 1, 28, 28), (2000, 3, 224, 224), (20, 3, 1024, 1024)])
def test_the_pictures_that_are_compared_are_bounded(shape):
    images = np.broadcast_to(np.uint8(0), shape)
    compared = images[augmentation_check._compared(images)]
    assert 4 < len(compared) <= 1000
    assert compared.size <= 16_000_000


@pytest.mark.parametrize("side", [1024, 5000])
def test_a_few_pictures_of_many_pixels_judge_nothing(side):
    images = np.broadcast_to(np.uint8(0), (20, 3, side, side))
    assert not augmentation_check.hide_classes(images, np.zeros(20, np.int64), "turn", 0.0)


@pytest.mark.parametrize(("lead", "hidden"), [(0.13, False), (0.15, True)])
def test_a_lead_of_two_standard_errors_of_a_difference_is_no_chance(lead, hidden, monkeypatch):
    """Of 100 pictures such an error is at most sqrt(2 x 0.25 / 100), 7 points."""
    monkeypatch.setattr(augmentation_check, "shares_right", lambda *unused: (0.6 + lead, 0.6))
    assert augmentation_check.hide_classes(np.zeros((100, 1, 8, 8), np.uint8), np.zeros(100), "turn", 0.4) == hidden


@pytest.mark.parametrize("labels", [[0] * 16, [*range(10), *range(6)], [0] * 15 + [1]])
def test_pictures_that_are_all_alike_and_classes_of_one_picture_are_no_error(labels):
    assert USUAL in tried(dataset(np.zeros((16, 1, 28, 28)), np.array(labels)))


@pytest.mark.parametrize(
    ("count", "by_colour", "given", "recoloured"),
    [
        (240, False, {}, True),
        (240, False, {"augment": "turn"}, False),
        (240, False, {"model": "vit"}, True),
        (240, True, {}, False),
        (48, False, {}, True),
        (48, True, {}, False),
        (39, False, {}, False),
    ],
)
def test_other_colours_are_tried_where_colours_do_not_tell_the_classes(count, by_colour, given, recoloured):
    labels, drawn = np.arange(count) % 3, np.random.default_rng(0).integers(0, 256, (count, 3, 1, 1))
    papers = np.eye(3)[labels][:, :, None, None] * 255 if by_colour else drawn
    images = np.broadcast_to(papers, (count, 3, 28, 28))
    assert ("with other colours" in tried(dataset(images, labels), **given)) == recoloured


@pytest.mark.parametrize("count", [3, 25, 49, 50, 73, 240, 500, 1153])
def test_the_last_batch_of_few_pictures_is_no_rest(count):
    """50 pictures in batches of 24 would leave a batch of two."""
    size = usual(folder_of(count), {})[0]["batch_size"]
    last = count % size or size
    assert last >= 0.6 * min(count, size)
    assert 18 <= size <= 30 or size == count


def test_what_is_given_stands():
    given = {"epochs": 7, "depth": 3, "ema": 0.5}
    chosen, _ = usual(folder_of(240), given)
    assert not given.keys() & chosen.keys()
    assert chosen["model"] == "vitbn", "an option of transformers asks for a transformer"
    assert usual(folder_of(240), {"epochs": 7})[0]["model"] == "cnn"


def test_a_transformer_of_pictures_of_a_prime_size_names_the_way_out():
    with pytest.raises(DataError, match="found 53; take 52 or 54, or give --patch-size"):
        usual(folder_of(240, 53), {"model": "vit"})
    assert usual(folder_of(240, 53), {"model": "vit", "patch_size": (53, 53)})[0]["depth"] == 2
    assert usual(folder_of(240, 53), {})[0]["model"] == "cnn"


def test_datasets_with_a_name_keep_the_published_options():
    assert usual(load_digits(), {}) == ({}, "")


@pytest.mark.slow
def test_what_was_chosen_is_said_and_can_be_typed(tmp_path, monkeypatch):
    for label, name in enumerate(("dark", "light")):
        (tmp_path / "mine" / name).mkdir(parents=True)
        for number in range(10):
            grey = np.random.default_rng(number).integers(0, 100, (28, 28), np.uint8) + 150 * label
            Image.fromarray(grey.astype(np.uint8)).save(tmp_path / "mine" / name / f"{number}.png")
    monkeypatch.chdir(tmp_path)
    told = ok(train, "--dataset", "mine", "--device", "cpu", "--epochs", 2).output
    (line,) = [line for line in told.splitlines() if line.startswith("Chosen for 16 pictures of 28x28 to train on: ")]
    typed = shlex.split(line.partition(": ")[2])
    ok(train, "--dataset", "mine", "--device", "cpu", "--epochs", 2, *typed, "--output", "typed.safetensors")
    first, second = load(tmp_path / "checkpoints/mine.safetensors"), load(tmp_path / "typed.safetensors")
    assert first.config == second.config
    assert first.metrics["options"] == second.metrics["options"]
