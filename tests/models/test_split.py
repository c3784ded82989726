"""A training's pictures stay in their parts, wherever the files are."""

import json
import shutil

import numpy as np
import pytest
import torch
from commands import failure, ok
from PIL import Image

from export.sample_images import own_dataset
from models.calibrate import calibrate
from models.checkpoints.checkpoint import load, save
from models.data import DataError, load_again
from models.data.folder import load_folder
from models.train import train

CLASSES = ("apple", "bread", "cup")
SMALL = ("--depth", 1, "--dim", 16, "--heads", 2, "--dim-head", 8, "--mlp-dim", 16, "--patch-size", 14, 14)
QUICK = (*SMALL, "--batch-size", 16, "--device", "cpu", "--schedule", "constant", "--augment", "none")


def picture(path, seed):
    """A picture of its own: the seed decides each pixel."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, (28, 28), np.uint8)).save(path)


def pictures(place):
    for label, name in enumerate(CLASSES):
        for number in range(20):
            picture(place / name / f"{number:02d}.png", 100 * label + number)
    return place


@pytest.fixture
def folder(tmp_path):
    return pictures(tmp_path / "food")


def contents(images):
    return {image.tobytes() for image in images}


def told_of(folder, path, *options):
    return ok(train, "--dataset", folder, *QUICK, "--output", path, *options).output


def trained(folder, path, *options):
    told_of(folder, path, *options)
    return load(path)


def renamed(folder):
    """In the reverse order, some in a sub-folder."""
    for name in CLASSES:
        for number in range(20):
            place = folder / name / ("old" if number % 3 else ".")
            place.mkdir(exist_ok=True)
            (folder / name / f"{number:02d}.png").rename(place / f"z{99 - number}.png")


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    """A folder of pictures with a training of one epoch, run.*, and of two, whole.*."""
    place = tmp_path_factory.mktemp("begun")
    folder = pictures(place / "food")
    trained(folder, place / "run.safetensors", "--epochs", 1)
    (place / "whole.txt").write_text(told_of(folder, place / "whole.safetensors", "--epochs", 2))
    return place


@pytest.fixture
def own(begun, tmp_path):
    """A copy of the folder and of the trainings beside it."""
    shutil.copytree(begun, tmp_path, dirs_exist_ok=True)
    return tmp_path / "food"


def test_without_a_held_out_part_no_epoch_looks_at_the_test_part(begun):
    written = json.loads((begun / "whole.json").read_text())
    assert [epoch["test_accuracy"] for epoch in written["series"]] == [None, None]
    assert ("test_accuracy" in written, written["kept_epoch"]) == (True, 2)
    assert (begun / "whole.txt").read_text().count("at the end") == 2


def test_a_training_goes_on_with_its_own_pictures_wherever_they_are(own, tmp_path):
    folder, path, whole = own, tmp_path / "run.safetensors", tmp_path / "whole.safetensors"
    before = load_folder(folder)
    renamed(folder)
    picture(folder / "cup/new.png", 7)
    assert contents(load_folder(folder).train_images) & contents(before.test_images), "the split by name is another"
    folder = folder.rename(tmp_path / "elsewhere, moved")
    trained(folder, path, "--epochs", 2, "--resume")
    torch.testing.assert_close(load(path).model.state_dict(), load(whole).model.state_dict(), rtol=0, atol=0)


def test_a_training_of_other_epochs_says_so_alone(folder, tmp_path):
    path = tmp_path / "run.safetensors"
    arguments = ("--dataset", folder, "--device", "cpu", "--output", path, "--epochs")
    ok(train, *arguments, 1)
    line, code = failure(train, *arguments, 2, "--resume")
    assert (code, line.split(": ", 2)[2]) == (1, 'expected a run of "epochs": 2, found "epochs": 1')


def exchanged(folder):
    picture(folder / "cup/00.png", 1000)


def moved(folder):
    (folder / "cup/00.png").rename(folder / "bread/zz.png")
    (folder / "bread/00.png").rename(folder / "cup/zz.png")


@pytest.mark.parametrize(
    ("change", "said"),
    [(exchanged, "found 1 changed or gone: 1 of cup"), (moved, "found 2 changed or gone: 1 of bread")],
)
def test_a_training_does_not_go_on_with_other_pictures(own, tmp_path, change, said):
    change(own)
    path = tmp_path / "run.safetensors"
    line, code = failure(train, "--dataset", own, *QUICK, "--output", path, "--epochs", 2, "--resume")
    assert code == 1
    assert line.startswith(f"Error: {own}: expected the pictures of the training, found ")
    assert said in line


def test_export_and_calibration_use_the_parts_of_the_training(folder, tmp_path):
    path = tmp_path / "run.safetensors"
    checkpoint = trained(folder, path, "--epochs", 2, "--hold-out", 21)
    about = checkpoint.metrics
    counts = {part: [len(own.split()) for own in classes.values()] for part, classes in about["pictures"].items()}
    assert counts == {"train": [9, 9, 9], "held_out": [7, 7, 7], "test": [4, 4, 4]}
    assert (list(about["pictures"]["test"]), about["last_batch"]) == (list(CLASSES), 27 % 16)
    then = load_folder(folder, held_out=21)
    renamed(folder)
    data = own_dataset(checkpoint.config, checkpoint.metrics, None)
    np.testing.assert_array_equal(data.train_images, then.train_images)
    np.testing.assert_array_equal(data.held[0], then.held[0])
    np.testing.assert_array_equal(data.test_images, then.test_images)
    assert not contents(data.test_images) & contents(data.train_images) | contents(data.held[0]) - contents(
        then.held[0]
    )
    ok(calibrate, path)
    assert load(path).metrics["temperature"] == checkpoint.metrics["temperature"]
    shutil.rmtree(folder / "cup/old")
    with pytest.raises(DataError, match="expected the pictures of the training, found 13 changed or gone"):
        own_dataset(checkpoint.config, checkpoint.metrics, None)
    assert "changed or gone" in failure(calibrate, path)[0]


@pytest.mark.parametrize("named", [True, False], ids=["a checkpoint of today", "an older checkpoint"])
def test_a_folder_of_other_classes_measures_nothing(folder, tmp_path, named):
    checkpoint = trained(folder, tmp_path / "run.safetensors", "--epochs", 1)
    metrics = {name: value for name, value in checkpoint.metrics.items() if named or name != "pictures"}
    (folder / "apple").rename(folder / "dish")
    with pytest.raises(DataError, match=r"expected the .*classes.*, apple, bread, cup, found bread, cup, dish"):
        own_dataset(checkpoint.config, metrics, None)


def test_an_older_checkpoint_of_another_split_is_not_measured(folder):
    metrics = {"dataset": str(folder), "test_images": 14}
    with pytest.raises(DataError, match=r"the 14 test pictures of the training, .*, found 12; train again"):
        load_again(metrics, None)


def test_the_folder_of_a_training_that_is_gone_can_be_named(begun):
    checkpoint = load(begun / "run.safetensors")
    gone = checkpoint.metrics | {"dataset": "gone", "data_dir": "/gone"}
    told = "gone: expected the training's pictures, found no such folder; --data-dir names their folder"
    with pytest.raises(DataError, match=f"^{told}$"):
        load_again(gone, None)
    assert load_again(gone, begun / "food").name == "gone"


def test_two_runs_of_a_seed_give_the_same_bytes(folder, tmp_path, monkeypatch):
    paths = [tmp_path / name / "run.safetensors" for name in "ab"]
    for path, more in zip(paths, ((), ("--overwrite",)), strict=True):
        path.parent.mkdir()
        monkeypatch.chdir(path.parent)
        if more:
            path.write_bytes(b"somebody's work")
        told_of(folder, "run.safetensors", "--epochs", 1, *more)
    assert paths[0].read_bytes() == paths[1].read_bytes()
    about = load(paths[0])
    for path in paths * 4:  # the order is random: two may agree by chance
        save(path, about.model, about.config, about.metrics)
        assert path.read_bytes() == paths[0].read_bytes()


def test_a_class_that_is_most_of_the_test_part_is_named(folder, tmp_path):
    for name in CLASSES[1:]:
        for number in range(6, 20):
            (folder / name / f"{number:02d}.png").unlink()
    told = ok(train, "--dataset", folder, *QUICK, "--output", tmp_path / "run.safetensors", "--epochs", 1).output
    assert "(95 % interval); always apple: 67 %; epoch 1 of 1 is kept" in told


def test_the_best_held_out_epoch_is_kept_through_a_break_and_the_test_part_is_looked_at_once(folder, tmp_path):
    path, broken = tmp_path / "run.safetensors", tmp_path / "broken.safetensors"
    options = ("--lr", 0.03, "--hold-out", 9)
    told = told_of(folder, path, "--epochs", 6, *options)
    trained(folder, broken, "--epochs", 3, *options)
    trained(folder, broken, "--epochs", 6, *options, "--resume")
    torch.testing.assert_close(load(broken).model.state_dict(), load(path).model.state_dict(), rtol=0, atol=0)
    assert load(broken).metrics["kept_epoch"] == load(path).metrics["kept_epoch"]
    written = json.loads(path.with_suffix(".json").read_text())
    accuracies = [epoch["test_accuracy"] for epoch in written["series"]]
    best = max(range(6), key=lambda epoch: (accuracies[epoch], epoch))
    assert (written["kept_epoch"], written["held_out_accuracy"]) == (best + 1, accuracies[best])
    data, model = load_folder(folder, held_out=9), load(path).model
    for images, labels, share in (
        (*data.held, accuracies[best]),
        (data.test_images, data.test_labels, written["test_accuracy"]),
    ):
        answers = model(torch.from_numpy(images) / 255).argmax(1).numpy()
        assert (answers == labels).mean() == pytest.approx(share)
    assert f"Test part: 12 pictures: {100 * written['test_accuracy']:.0f} %, " in told
    assert f"(95 % interval); epoch {best + 1} of 6 is kept" in told
